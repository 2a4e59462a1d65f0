# SPDX-License-Identifier: Apache-2.0
"""The two ways a run's gradients are summed: by the switch, or by plain Gloo for reference."""

from typing import Any, Protocol

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from weir.train.config import TrainConfig
from weir.train.hooks import BucketHook
from weir.train.messages import Delivery, Sent, Traffic
from weir.train.spec import BackendName
from weir.train.wirebytes import Meter, TcpMeter


class Method(Protocol):
    """How a bucket is reduced, and what that cost."""

    @property
    def hook(self) -> BucketHook:
        """The communication hook to register."""

    @property
    def state(self) -> Any:
        """Its state."""

    @property
    def meter(self) -> Meter:
        """Counts this worker's traffic."""

    def sent(self) -> Sent:
        """What of this worker's gradient was sent in the last step."""

    def delivery(self) -> Delivery:
        """How this worker's packets fared in the last step."""


class WeirMeter:
    """The packets of a Weir group, as its transport counts them; retransmissions are among them."""

    source = "measured: frames of Weir's own transport, headers from Ethernet up"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def read(self) -> Traffic:
        """The totals of all reductions so far."""
        stats = self._connection.stats
        return Traffic(
            bytes_up=stats.bytes_up,
            bytes_down=stats.bytes_down,
            packets_up=stats.packets_up,
            packets_down=stats.packets_down,
            retransmissions=stats.retransmissions,
        )


class GlooMethod:
    """Plain all-reduce, dense."""

    def __init__(self) -> None:
        self.hook: BucketHook = allreduce_hook
        self.state: Any = None
        self.meter: Meter = TcpMeter()

    def sent(self) -> Sent:
        """Everything."""
        return Sent()

    def delivery(self) -> Delivery:
        """Nothing that TCP would tell."""
        return Delivery()


class WeirMethod:
    """Weir's sparsified all-reduce with error feedback."""

    def __init__(self, ddp: DistributedDataParallel, config: TrainConfig) -> None:
        import weir.torch
        from host_agent.loss_policy import LossPolicy

        self.hook: BucketHook = weir.torch.hook
        self.state = weir.torch.HookState(
            ddp,
            sparsifier=config.sparsifier,
            density=config.density,
            threshold=config.threshold,
            block=config.block,
            loss_policy=LossPolicy.of(config.loss_policy or config.loss_budget),
        )
        self._blocks = sum(-(-parameter.numel() // config.block) for parameter in ddp.parameters())
        self.meter: Meter = WeirMeter(self.state.group.connection)

    def sent(self) -> Sent:
        """As the hook counted the last step. Blocks are cut from each parameter by itself."""
        last = self.state.last_step
        assert last is not None, "a step was taken"
        return Sent(last.density, last.blocks_sent, self._blocks - last.blocks_sent)

    def delivery(self) -> Delivery:
        """As the hook counted the last step."""
        last = self.state.last_step
        assert last is not None, "a step was taken"
        return Delivery(
            timeouts=last.timeouts,
            releases=last.releases,
            trimmed=last.trimmed,
            marked=last.marked,
            repeats=last.repeats_asked,
            lanes=last.entered.lanes,
            missing=last.missing,
            budget=last.budget,
        )


def make_method(backend: BackendName, ddp: DistributedDataParallel, config: TrainConfig) -> Method:
    """The hook, state and meter for a backend's process group, which must be initialized."""
    if backend == "gloo":
        return GlooMethod()
    return WeirMethod(ddp, config)
