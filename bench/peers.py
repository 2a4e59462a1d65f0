# SPDX-License-Identifier: Apache-2.0
"""Contenders of comparisons: ways to sum a tensor of all ranks, and gradients under DDP."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from weir.host_agent.collectives.packing import LaneBits

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from weir.bench.rank import Place

GLOO: Final = "Gloo"


@dataclass(frozen=True)
class Contender:
    """A way to sum.

    Attributes:
        words: in tables.
        group: "gloo"; "weir"; "local": Weir's ranks reduce in the host's memory; "mpi": of
            `weir.bench.collectives.mpi`; "none": nothing is summed.
        pieces: of the tensor, each summed by a Gloo group of its own, side by side.
        lane_bits: of a value in Weir's packets.
        halves: torch's hook that halves floats, by its name in ``weir.train.peers``; empty: without it.
        rank: of torch's PowerSGD hook; 0: without it.
        hook: options of Weir's hook but the density; None: without it.
        one_bucket: all gradients are exchanged at once, after the backward pass.
    """

    words: str
    group: Literal["gloo", "weir", "local", "mpi", "none"]
    pieces: int = 1
    lane_bits: LaneBits = 32
    halves: str = ""
    rank: int = 0
    hook: dict[str, Any] | None = field(default=None, hash=False)
    one_bucket: bool = False

    @property
    def peer(self) -> bool:
        """True if it sums without Weir."""
        return self.group in ("gloo", "mpi")


CONTENDERS: Final = {
    "gloo": Contender(GLOO, "gloo"),
    "gloo-4": Contender("4 Gloo groups", "gloo", pieces=4),
    "gloo-20": Contender("20 Gloo groups", "gloo", pieces=20),
    "mpich": Contender("MPICH", "mpi"),
    "openmpi": Contender("Open MPI", "mpi"),
    "weir": Contender("Weir", "weir"),
    "weir-16": Contender("Weir 16", "weir", lane_bits=16),
    "weir-8": Contender("Weir 8", "weir", lane_bits=8),
    "weir-local": Contender("Weir local", "local"),
}
"""Those that sum tensors, by name. "Weir 16", "Weir 8": values of 16 and 8 bits, see precision.md."""

DDP_CONTENDERS: Final = {
    "alone": Contender("nothing summed", "none"),
    "gloo": Contender(GLOO, "gloo"),
    "gloo-fp16": Contender("Gloo, fp16 hook", "gloo", halves="gloo-fp16"),
    "gloo-bf16": Contender("Gloo, bf16 hook", "gloo", halves="gloo-bf16"),
    "powersgd-1": Contender("Gloo, PowerSGD rank 1", "gloo", rank=1, one_bucket=True),
    "powersgd-2": Contender("Gloo, PowerSGD rank 2", "gloo", rank=2, one_bucket=True),
    "powersgd-4": Contender("Gloo, PowerSGD rank 4", "gloo", rank=4, one_bucket=True),
    "powersgd-8": Contender("Gloo, PowerSGD rank 8", "gloo", rank=8, one_bucket=True),
    "weir": Contender("Weir", "weir"),
    "weir-local": Contender("Weir local", "local"),
    "weir-hook": Contender("Weir hook, dense", "weir", hook={"sparsifier": "dense"}),
    "weir-16": Contender("Weir hook, 16 bits", "weir", hook={"sparsifier": "dense", "lane_bits": 16}),
    "weir-8": Contender("Weir hook, 8 bits", "weir", hook={"sparsifier": "dense", "lane_bits": 8}),
    "dfs": Contender("Weir hook, dfs", "weir", hook={"sparsifier": "dfs"}),
    "dfs-1": Contender("Weir hook, dfs, one bucket", "weir", hook={"sparsifier": "dfs"}, one_bucket=True),
    "topk-block": Contender("Weir hook, topk-block", "weir", hook={"sparsifier": "topk-block"}),
    "exdyna": Contender("Weir hook, exdyna", "weir", hook={"sparsifier": "exdyna"}),
    "exdyna-1": Contender(
        "Weir hook, exdyna, one bucket", "weir", hook={"sparsifier": "exdyna"}, one_bucket=True
    ),
    "dfs-local": Contender("Weir hook, dfs local", "local", hook={"sparsifier": "dfs"}),
}
"""Those that sum gradients of DDP, by name. The first one is the floor: one worker alone."""


def all_reduce(data: "torch.Tensor", contender: Contender, place: "Place") -> None:
    """Sum a tensor over all ranks, in place."""
    import torch.distributed as dist

    if contender.pieces > 1:
        parts = zip(data.tensor_split(contender.pieces), place.pieces(contender.pieces), strict=True)
        works = [dist.all_reduce(part, group=group, async_op=True) for part, group in parts]
        for work in works:
            assert work is not None
            work.wait()
    else:
        dist.all_reduce(data, group=group_of(contender, place))


def group_of(contender: Contender, place: "Place") -> Any:
    """Return the process group of a contender that has a single one; Gloo's where nothing is summed."""
    if contender.group in ("weir", "local"):
        return place.weir(contender.lane_bits, local=contender.group == "local")
    return place.gloo


def parallel(
    model: "torch.nn.Module", contender: Contender, place: "Place", density: float
) -> "DistributedDataParallel":
    """Return DDP over a model, with the contender's group and hook. density: of sparsifiers.

    Nothing is broadcast: all ranks begin with the same parameters.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    import weir.torch
    from weir.train.peers import HOOKS, ONE_BUCKET_MB, powersgd_state

    group = group_of(contender, place)
    ddp = DistributedDataParallel(
        model,
        process_group=group,
        init_sync=False,
        bucket_cap_mb=ONE_BUCKET_MB if contender.one_bucket else None,
    )
    if contender.halves:
        ddp.register_comm_hook(group, HOOKS[contender.halves])
    if contender.rank:
        ddp.register_comm_hook(powersgd_state(group, contender.rank), powerSGD_hook)
    if contender.hook is not None:
        state = weir.torch.HookState(ddp, density=density, **contender.hook)
        ddp.register_comm_hook(state, weir.torch.hook)
    return ddp
