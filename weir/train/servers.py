# SPDX-License-Identifier: Apache-2.0
"""Parameter servers in place of the gradient all-reduce: what a worker does, and what a server does."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from weir.train.backends import Exchange, WeirMeter, delivery_of, sent_of
from weir.train.config import TrainConfig
from weir.train.messages import Delivery, Sent, WorkerSpec

MIGRATE_EVERY: Final = 50
"""Steps after which blocks may move, with --placement dynamic."""


def rendezvous(spec: WorkerSpec) -> str | None:
    """Return where the workers and servers of a run meet; None: as the environment has it."""
    return f"{spec.init_method}-servers" if spec.init_method.startswith("file:") else None


class ServersExchange(Exchange):
    """Gradients are pushed to servers, which step; what they change comes back."""

    steps = True

    def __init__(self, ddp: DistributedDataParallel, config: TrainConfig, where: str | None) -> None:
        self._ddp, self._config, self._where = ddp, config, where
        self.in_step = config.consistency == "sync" and config.placement is None
        self.meter = WeirMeter([])
        self._before = Delivery()

    def begin(self, optimizer: Optimizer) -> None:
        """Meet the servers."""
        import weir.torch

        config = self._config
        self._server = weir.torch.ParameterServer(
            self._ddp,
            optimizer,
            servers=config.servers,
            sparsifier=config.method,
            encoding=config.encoding,
            density=config.density,
            threshold=config.threshold,
            block=config.block,
            warmup_steps=config.warmup_steps,
            exclude=config.exclude,
            lane_bits=config.lane_bits,
            lane_error=config.lane_error,
            seed=config.seed,
            max_norm=config.max_norm,
            consistency=config.consistency,
            push_filter=config.push_filter,
            pull_filter=config.pull_filter,
            migrate_every=MIGRATE_EVERY if config.placement is not None else 0,
            together=config.hosts == "processes" and config.servers == config.workers,
            overlap=self.in_step and config.overlap,
            loss_budget=config.loss_budget,
            rendezvous=self._where,
        )
        self.meter = WeirMeter([self._server.connection if self.in_step else self._server.session])

    def stepped(self) -> None:
        """Push the gradients, take what has changed."""
        self._server.step()

    def finish(self, batches: Iterable[Tensor]) -> None:
        """Take what is still to come, and let the servers go."""
        self._server.finish()
        self._server.close()

    def sent(self) -> Sent:
        """Return what was pushed in the last step."""
        if not self.in_step:
            return Sent(density=min(1.0, self._server.session.last_density))
        return sent_of(self._server.last_step, self._server.fills_union)

    def delivery(self) -> Delivery:
        """Return how the packets of the last step fared."""
        if self.in_step:
            return delivery_of(self._server.last_step)
        now, before = self._delivery_so_far(), self._before
        self._before = now
        return now - before

    def _delivery_so_far(self) -> Delivery:
        session, budget = self._server.session, self._config.loss_budget
        pushed = session.pushed
        found = Delivery(session.stats, pushed, session.refunded, int(budget * pushed))
        if self._server.rank:
            return found
        return replace(found, migrated=self._server.moved, migrated_bytes=self._server.migrated_bytes)


def serve(spec: WorkerSpec, index: int) -> None:
    """Be a server of a run, until its workers let it go."""
    from weir.server.cli import serve as be_a_server

    be_a_server(rendezvous(spec), index)
