# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench latency``: small collectives one after another, over Gloo and over Weir in turns.

Started as ``allreduce_worker`` is; arguments: a JSON ``LatencySpec``. Prints one JSON line: by collective,
bytes and backend, a list of ``Turn`` fields.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

import weir.torch  # noqa: F401  registers the backend
from weir.process.processor import ProcessorTime

CONTENDERS: Final = ("gloo", "weir")

_ROWS: Final = 100_000  # of the table of a sparse tensor
_WIDTH: Final = 64  # of a row

Group = dist.ProcessGroup


def _for_root(group: Group, value: Any) -> list[Any] | None:
    """Return a list with a value for each rank on rank 0, nothing elsewhere."""
    return [value] * group.size() if group.rank() == 0 else None


def _all_gather(data: torch.Tensor, group: Group) -> None:
    dist.all_gather([torch.empty_like(data) for _ in range(group.size())], data, group=group)


def _reduce_scatter(data: torch.Tensor, group: Group) -> None:
    dist.reduce_scatter_tensor(data, data.repeat(group.size()), group=group)


def _gather(data: torch.Tensor, group: Group) -> None:
    parts = _for_root(group, data)
    dist.gather(data, None if parts is None else [torch.empty_like(data) for _ in parts], group=group)


def _sparse_all_reduce(data: torch.Tensor, group: Group) -> None:
    """Sum rows of a table that each rank chooses at random, as of the gradient of an embedding."""
    rows = data.numel() // _WIDTH
    chosen = torch.randint(_ROWS, (1, rows), generator=torch.Generator().manual_seed(group.rank()))
    values = data[: rows * _WIDTH].view(rows, _WIDTH)
    dist.all_reduce(torch.sparse_coo_tensor(chosen, values, (_ROWS, _WIDTH)), group=group)


COLLECTIVES: Final[dict[str, Callable[[torch.Tensor, Group], object]]] = {
    "all_reduce": lambda data, group: dist.all_reduce(data, group=group),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "sparse_all_reduce": _sparse_all_reduce,
    "reduce": lambda data, group: dist.reduce(data, 0, group=group),
    "broadcast": lambda data, group: dist.broadcast(data, 0, group=group),
    "scatter": lambda data, group: dist.scatter(data, _for_root(group, data), group=group),
    "gather": _gather,
    "barrier": lambda _, group: dist.barrier(group),
    "broadcast_object_list": lambda data, group: dist.broadcast_object_list([data.numel()], 0, group),
    "scatter_object_list": lambda data, group: dist.scatter_object_list(
        [None], _for_root(group, data.numel()), 0, group
    ),
    "gather_object": lambda data, group: dist.gather_object(data.numel(), _for_root(group, None), 0, group),
}
"""The collectives to choose from; rooted ones have rank 0 as their root."""


@dataclass(frozen=True)
class LatencySpec:
    """The collectives to be timed.

    sizes: of a rank's float32 tensor, in bytes; objects are a number. repeats: turns of each contender.
    calls: collectives in a turn. switches: process ids of the switches. collectives: of ``COLLECTIVES``.
    """

    sizes: tuple[int, ...]
    repeats: int
    calls: int
    switches: tuple[int, ...] = ()
    collectives: tuple[str, ...] = ("all_reduce",)

    def json(self) -> str:
        """Return the spec as a command-line argument."""
        return json.dumps(asdict(self))


class Turn(NamedTuple):
    """Collectives one after another, as one rank saw them, per call.

    seconds: from a common start. worker, switch: seconds of processor time, of this rank and of all switches.
    """

    seconds: float
    worker: float
    switch: float


def turn(collective: str, data: torch.Tensor, group: Group, spec: LatencySpec) -> Turn:
    """Measure one turn. data: may become the sum of the sums, so it must be small."""
    call = COLLECTIVES[collective]
    dist.barrier()
    before, start = ProcessorTime.now(spec.switches), time.perf_counter()
    for _ in range(spec.calls):
        call(data, group)
    seconds = time.perf_counter() - start
    used = ProcessorTime.now(spec.switches) - before
    return Turn(seconds / spec.calls, used.own / spec.calls, used.others / spec.calls)


def main() -> None:
    """Run the spec on the command line."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    tuples = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
    spec = LatencySpec(**(raw | tuples))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        groups = dict(zip(CONTENDERS, (dist.group.WORLD, dist.new_group(backend="weir")), strict=True))
        turns: dict[str, dict[int, dict[str, list[Turn]]]] = {}
        for collective, size in itertools.product(spec.collectives, spec.sizes):
            taken: dict[str, list[Turn]] = {name: [] for name in groups}
            for _ in range(spec.repeats + 1):
                for name, group in groups.items():
                    assert group is not None
                    taken[name].append(turn(collective, torch.full((size // 4,), 2.0**-60), group, spec))
            # The first one warms up.
            turns.setdefault(collective, {})[size] = {name: rest for name, (_, *rest) in taken.items()}
        print(json.dumps(turns), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
