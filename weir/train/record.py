# SPDX-License-Identifier: Apache-2.0
"""What is known of one run: steps of all workers put together, replicas compared, evaluations, status."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from weir.train.messages import Delivery, Evaluated, Message, Ready, Step, Traffic
from weir.train.spec import BackendName
from weir.train.watch import NetworkCounts

Status = Literal["running", "complete", "interrupted", "failed"]


class ReplicasDifferError(RuntimeError):
    """After a step the parameters of two workers were not bit-identical."""


@dataclass(frozen=True)
class StepSummary:
    """One step of a run over all workers that this process hears.

    loss: mean. seconds: the slowest worker's. communication_s, density: mean. Traffic is the mean per
    worker, but retransmissions and blocks, which are totals. checksum: of the parameters, equal everywhere.
    delivery: how the packets of all workers fared.
    """

    run: BackendName
    epoch: int
    step: int
    loss: float
    seconds: float
    communication_s: float
    density: float
    bytes_up: float
    bytes_down: float
    packets_up: float
    packets_down: float
    retransmissions: int
    blocks_sent: int
    blocks_skipped: int
    checksum: str
    delivery: Delivery = field(default_factory=Delivery)

    def as_json(self) -> dict[str, Any]:
        """As a line of steps.jsonl."""
        return {
            key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(self).items()
        }


class RunRecord:
    """Takes in messages; knows steps, evaluations and totals per worker.

    Attributes:
        steps: completed steps, in order.
        evaluations: one per epoch.
        totals: rank -> what that worker put on the wire in all its steps.
        counts: what the switches counted, lately; None where nobody asks them.
        status: how it stands; ``problem`` says why when it failed.
    """

    def __init__(self, run: BackendName, ranks: Collection[int], epochs: int) -> None:
        self.run = run
        self.epochs = epochs
        self.ranks = frozenset(ranks)
        self.ready: Ready | None = None
        self.steps: list[StepSummary] = []
        self.evaluations: list[Evaluated] = []
        self.totals: dict[int, Traffic] = dict.fromkeys(sorted(ranks), Traffic())
        self.counts: NetworkCounts | None = None
        self.status: Status = "running"
        self.problem = ""
        self._pending: dict[int, dict[int, Step]] = {}

    def add(self, message: Message) -> StepSummary | Evaluated | None:
        """Take in a message; returns what it completed, if anything.

        Raises ReplicasDifferError when the parameters of two workers differ after a step.
        """
        match message:
            case Ready():
                self.ready = self.ready or message
            case Step():
                return self._add_step(message)
            case Evaluated() if message.rank == min(self.ranks):  # all ranks evaluate together
                self.evaluations.append(message)
                return message
        return None

    @property
    def total_steps(self) -> int:
        """Steps the whole run takes; 0 before the workers are ready."""
        return self.epochs * self.ready.steps_per_epoch if self.ready else 0

    @property
    def accuracy(self) -> float | None:
        """On the held-out set, after the last epoch that was evaluated."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def communication_s(self) -> float:
        """Time in which gradients were under way, mean over workers, all steps."""
        return sum(step.communication_s for step in self.steps)

    @property
    def training_s(self) -> float:
        """Time in steps, of the slowest worker in each."""
        return sum(step.seconds for step in self.steps)

    @property
    def step_s(self) -> float:
        """Median time of a step."""
        return median(step.seconds for step in self.steps) if self.steps else 0.0

    @property
    def density(self) -> float:
        """Mean share of gradient values that were sent."""
        return fmean(step.density for step in self.steps) if self.steps else 0.0

    @property
    def mean_traffic(self) -> Traffic:
        """Mean per worker over all steps, in whole bytes and packets; retransmissions: the total."""
        total = sum(self.totals.values(), Traffic())
        workers = len(self.ranks)
        return Traffic(
            bytes_up=total.bytes_up // workers,
            bytes_down=total.bytes_down // workers,
            packets_up=total.packets_up // workers,
            packets_down=total.packets_down // workers,
            retransmissions=total.retransmissions,
        )

    @property
    def delivery(self) -> Delivery:
        """How the packets of all workers and steps fared."""
        return sum((step.delivery for step in self.steps), Delivery())

    def _add_step(self, step: Step) -> StepSummary | None:
        self.totals[step.rank] += step.traffic
        heard = self._pending.setdefault(step.step, {})
        heard[step.rank] = step
        if heard.keys() != self.ranks:
            return None
        del self._pending[step.step]
        summary = self._summarize(list(heard.values()))
        self.steps.append(summary)
        return summary

    def _summarize(self, steps: list[Step]) -> StepSummary:
        first = steps[0]
        differing = sorted(step.rank for step in steps if step.checksum != first.checksum)
        if differing:
            sums = ", ".join(f"rank {s.rank}: {s.checksum:016x}" for s in sorted(steps, key=lambda s: s.rank))
            raise ReplicasDifferError(
                f"after step {first.step} of the {self.run} run the workers' parameters differ: {sums}"
            )
        return StepSummary(
            run=self.run,
            epoch=first.epoch,
            step=first.step,
            loss=fmean(step.loss for step in steps),
            seconds=max(step.seconds for step in steps),
            communication_s=fmean(step.communication_s for step in steps),
            density=fmean(step.sent.density for step in steps),
            bytes_up=fmean(step.traffic.bytes_up for step in steps),
            bytes_down=fmean(step.traffic.bytes_down for step in steps),
            packets_up=fmean(step.traffic.packets_up for step in steps),
            packets_down=fmean(step.traffic.packets_down for step in steps),
            retransmissions=sum(step.traffic.retransmissions for step in steps),
            blocks_sent=sum(step.sent.blocks for step in steps),
            blocks_skipped=sum(step.sent.blocks_skipped for step in steps),
            checksum=f"{first.checksum:016x}",
            delivery=sum((step.delivery for step in steps), Delivery()),
        )
