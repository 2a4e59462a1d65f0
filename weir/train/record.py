# SPDX-License-Identifier: Apache-2.0
"""Record of one run: steps of all workers put together, replicas compared, evaluations, status."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Final, Literal

from weir.process.processor import ProcessorTime
from weir.train.messages import BackendName, Delivery, Evaluated, Message, Ready, Step, WireCounters
from weir.train.watch import NetworkCounts

_IN_STEPS: Final = {
    **{name: name for name in ("timeouts", "releases", "trimmed", "marked")},
    "repeats": "repeats_asked",
}
"""Transport counters by their names in steps.jsonl, which do not change."""

Status = Literal["running", "complete", "interrupted", "failed"]


class ReplicasDifferError(RuntimeError):
    """The parameters of two workers were not bit-identical where they had to be."""


@dataclass(frozen=True)
class StepSummary:
    """One step of a run over all workers that this process hears.

    loss: mean. seconds: the slowest worker's. communication_s, selection_s, density: mean. Traffic is the
    mean per worker, but retransmissions and blocks, which are totals. build_up: values that some worker
    sent, over those that one sent on average; imbalance: what the busiest worker chose over the average;
    None where no values are chosen. checksum: of the parameters, equal everywhere; None where they may
    differ. delivery: how the packets of all workers fared.
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
    checksum: str | None
    build_up: float | None = None
    imbalance: float | None = None
    selection_s: float = 0.0
    delivery: Delivery = field(default_factory=Delivery)

    def as_json(self) -> dict[str, Any]:
        """Return a line of steps.jsonl."""
        values = asdict(self) | {"delivery": delivery_json(self.delivery)}
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}


def delivery_json(delivery: Delivery) -> dict[str, int]:
    """Return the part of steps.jsonl and summary.json that tells of packets and of what is missing."""
    counters = {name: getattr(delivery.counters, counter) for name, counter in _IN_STEPS.items()}
    return counters | {name: getattr(delivery, name) for name in ("lanes", "missing", "budget")}


class RunRecord:
    """All that workers have said of a run: steps, evaluations and totals per worker.

    Attributes:
        before: steps that were made before the checkpoint from which the run went on.
        steps: completed steps, in order; those before the checkpoint are not among them.
        evaluations: one after each epoch, and any in between.
        seconds: rank -> what each of its steps took.
        totals: rank -> what that worker put on the wire in all its steps.
        memory: the most that a worker ever held, see ``Step.memory``.
        counts: what the switches counted, lately; None where nobody asks them.
        processor: processor time of the switches (``others``) and of this machine since the first step ended;
            None where the workers are not all on it.
        identical_at_end: the parameters of all ranks were compared when training was over, and equal.
        status: how it stands; ``problem`` says why when it failed.
    """

    def __init__(self, run: BackendName, ranks: Collection[int], epochs: int, before: int = 0) -> None:
        self.run = run
        self.before = before
        self.epochs = epochs
        self.ranks = frozenset(ranks)
        self.ready: Ready | None = None
        self.steps: list[StepSummary] = []
        self.evaluations: list[Evaluated] = []
        self.seconds: dict[int, list[float]] = {rank: [] for rank in sorted(ranks)}
        self.totals: dict[int, WireCounters] = dict.fromkeys(sorted(ranks), WireCounters())
        self.memory = 0
        self.counts: NetworkCounts | None = None
        self.processor: ProcessorTime | None = None
        self.status: Status = "running"
        self.problem = ""
        self.identical_at_end = False
        self._began: ProcessorTime | None = None
        self._worker_s = 0.0  # processor time of a worker in its steps after the first
        self._pending: dict[int, dict[int, Step]] = {}
        self._checksums: dict[int, int] = {}

    def add(self, message: Message) -> StepSummary | Evaluated | None:
        """Take in a message; returns what it completed, if anything.

        Raises ReplicasDifferError when the parameters of two workers differ that should be equal.
        """
        match message:
            case Ready():
                self.ready = self.ready or message
            case Step():
                return self._add_step(message)
            case Evaluated():
                self._add_evaluation(message)
                if message.rank == min(self.ranks):  # all ranks evaluate together
                    self.evaluations.append(message)
                    return message
        return None

    @property
    def total_steps(self) -> int:
        """Return steps the whole run takes; 0 before the workers are ready."""
        return self.epochs * self.ready.steps_per_epoch if self.ready else 0

    @property
    def done(self) -> int:
        """Return how many steps are made, those before a checkpoint included."""
        return self.before + len(self.steps)

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the held-out set, as last evaluated."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def identical_in_steps(self) -> bool:
        """Parameters of all ranks were compared after every step, and equal."""
        return bool(self.steps) and all(step.checksum is not None for step in self.steps)

    @property
    def communication_s(self) -> float:
        """Return time in which gradients were under way, mean over workers, all steps."""
        return sum(step.communication_s for step in self.steps)

    @property
    def training_s(self) -> float:
        """Return time in steps, of the slowest worker in each."""
        return sum(step.seconds for step in self.steps)

    @property
    def step_s(self) -> float:
        """Return median time of a step."""
        return median(step.seconds for step in self.steps) if self.steps else 0.0

    @property
    def density(self) -> float:
        """Mean share of gradient values that were sent."""
        return fmean(step.density for step in self.steps) if self.steps else 0.0

    @property
    def build_up(self) -> float | None:
        """Mean over the steps; None where no values are chosen."""
        return mean_known(step.build_up for step in self.steps)

    @property
    def imbalance(self) -> float | None:
        """Mean over the steps; None where no values are chosen, or one worker alone is heard."""
        return mean_known(step.imbalance for step in self.steps)

    @property
    def selection_s(self) -> float | None:
        """Mean time per step to choose what is sent; None where no values are chosen."""
        return mean_known(step.selection_s if step.build_up is not None else None for step in self.steps)

    def clock(self, now: ProcessorTime | None) -> None:
        """Take in the processor time at the end of a step; None where it is not known."""
        if len(self.steps) == 1:
            self._began = now
        self.processor = None if now is None or self._began is None else now - self._began

    def processor_per_gigabyte(self) -> ProcessorTime | None:
        """Return processor time for each gigabyte (1e9 bytes) of one worker's float32 gradients.

        own: of one worker, forward and backward pass included, on average. None until two steps are taken.
        """
        if self.processor is None or self.ready is None or len(self.steps) < 2:
            return None
        gigabytes = 4 * self.ready.parameters * (len(self.steps) - 1) / 1e9
        used = (self._worker_s, self.processor.others, self.processor.machine)
        return ProcessorTime(*(seconds / gigabytes for seconds in used))

    @property
    def mean_traffic(self) -> WireCounters:
        """Mean per worker over all steps, in whole bytes and packets; retransmissions: the total."""
        total = sum(self.totals.values(), WireCounters())
        workers = len(self.ranks)
        return WireCounters(
            bytes_up=total.bytes_up // workers,
            bytes_down=total.bytes_down // workers,
            packets_up=total.packets_up // workers,
            packets_down=total.packets_down // workers,
            retransmissions=total.retransmissions,
        )

    @property
    def delivery(self) -> Delivery:
        """Return how the packets of all workers and steps fared."""
        return sum((step.delivery for step in self.steps), Delivery())

    def _add_step(self, step: Step) -> StepSummary | None:
        self.totals[step.rank] += step.traffic
        self.seconds[step.rank].append(step.seconds)
        self.memory = max(self.memory, step.memory)
        heard = self._pending.setdefault(step.step, {})
        heard[step.rank] = step
        if heard.keys() != self.ranks:
            return None
        del self._pending[step.step]
        summary = self._summarize(list(heard.values()))
        if self.steps:
            self._worker_s += fmean(each.processor_s for each in heard.values())
        self.steps.append(summary)
        return summary

    def _add_evaluation(self, message: Evaluated) -> None:
        """Count what it took to make the replicas equal in the end, and compares them then."""
        self.totals[message.rank] += message.traffic
        if message.checksum is None:
            return
        self._checksums[message.rank] = message.checksum
        if self._checksums.keys() == self.ranks:
            self._compare(f"the last step of the {self.run} run", self._checksums)
            self.identical_at_end = True

    @staticmethod
    def _compare(when: str, checksums: Mapping[int, int]) -> None:
        if len(set(checksums.values())) > 1:
            sums = ", ".join(f"rank {rank}: {checksums[rank]:016x}" for rank in sorted(checksums))
            raise ReplicasDifferError(f"after {when} the workers' parameters differ: {sums}")

    def _summarize(self, steps: list[Step]) -> StepSummary:
        first = steps[0]
        checksums = {step.rank: step.checksum for step in steps if step.checksum is not None}
        self._compare(f"step {first.step} of the {self.run} run", checksums)
        build_up, imbalance = _spread(steps)
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
            checksum=None if first.checksum is None else f"{first.checksum:016x}",
            build_up=build_up,
            imbalance=imbalance,
            selection_s=fmean(step.sent.selection_s for step in steps),
            delivery=sum((step.delivery for step in steps), Delivery()),
        )


def _spread(steps: list[Step]) -> tuple[float | None, float | None]:
    """Build-up and imbalance of what all workers chose and sent in one step."""
    parts = [step.sent for step in steps]
    chosen = [part.chosen for part in parts if part.chosen is not None]
    values = fmean(part.values or 0 for part in parts)
    if not values or not any(chosen):
        return None, None
    imbalance = max(chosen) / fmean(chosen) if len(chosen) > 1 else None
    return (parts[0].union or 0) / values, imbalance


def mean_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that are not None; None when there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
