# SPDX-License-Identifier: Apache-2.0
"""Small collectives one after another through ``torch.distributed``, over Weir and over Gloo alternately."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from softp4.bench.contenders import take_turns
from weir.bench.case import Run, parameter
from weir.bench.peers import CONTENDERS, GLOO, group_of
from weir.bench.rank import Place
from weir.bench.ranks import BRIDGED, RATES, Links, check_rates, every_network, run_ranks
from weir.bench.results import Column, Row, Table, plain
from weir.process.processor import ProcessorTime

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
class Parameters:
    """The collectives to be timed; objects are a number."""

    workers: tuple[int, ...] = parameter((2, 4), "Numbers of workers.", least=1, most=32)
    kilobytes: tuple[float, ...] = parameter(
        (4, 16, 64, 256, 1024), "Sizes of a rank's float32 tensor.", unit="KiB", least=4 / 1024
    )
    collectives: tuple[str, ...] = parameter(("all_reduce",), "What is timed.", choices=COLLECTIVES)
    rates: tuple[str, ...] = parameter(("200mbit",), RATES)
    calls: int = parameter(20, "Collectives in a repetition.", least=1)

    def __post_init__(self) -> None:
        check_rates(self.rates)


class Turn(NamedTuple):
    """Collectives one after another, as one rank saw them, per call.

    seconds: from a common start. worker, switch: seconds of processor time, of this rank and of all switches.
    """

    seconds: float
    worker: float
    switch: float


@dataclass(frozen=True)
class Spec:
    """Collectives that each rank is to time. size: of its tensor in bytes."""

    cases: tuple[tuple[str, int], ...]
    calls: int
    repeats: int
    switches: tuple[int, ...]


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure over shared memory and over shaped links."""
    rows: list[Row] = []
    cases = tuple(product(given.collectives, (round(1024 * size) for size in given.kilobytes)))
    for workers in given.workers:
        for links in every_network(workers, given.rates, run.say):
            run.say(f"{workers} workers, {links.name} ...")
            ranks = run_ranks(measure, Spec(cases, given.calls, run.repeats, links.switches), links)
            rows += (
                row(links, case, name, [rank[case][name] for rank in ranks])
                for case in cases
                for name in ("gloo", "weir")
            )
    yield Table(
        "Collectives of small tensors of float32",
        (
            Column("us", plain, f"of a call, of {given.calls} one after another; the slowest rank's"),
            Column("worker us", plain, "processor time of a call, of one rank"),
            Column("switch us", plain, "processor time of a call, of the switch"),
        ),
        tuple(rows),
        peers=(GLOO,),
        notes=(BRIDGED,),
    )


def row(links: Links, case: tuple[str, int], contender: str, ranks: Sequence[Sequence[Turn]]) -> Row:
    """Return the figures of one contender; those of the switch as the first rank saw them."""
    together = list(zip(*ranks, strict=True))
    return Row(
        CONTENDERS[contender].words,
        {
            "us": [1e6 * max(turn.seconds for turn in turns) for turns in together],
            "worker us": [1e6 * median(turn.worker for turn in turns) for turns in together],
            "switch us": [1e6 * turns[0].switch for turns in together],
        },
        {
            "workers": f"{links.workers} workers",
            "links": links.name,
            "collective": case[0],
            "size": f"{case[1] / 1024:g} KiB",
        },
    )


def measure(place: Place, spec: Spec) -> dict[tuple[str, int], dict[str, list[Turn]]]:
    """Time the collectives on one rank: turns by case and contender."""
    groups = {name: group_of(CONTENDERS[name], place) for name in ("gloo", "weir")}
    return {
        (collective, size): take_turns(
            {name: partial(_turn, collective, size, group, spec) for name, group in groups.items()},
            spec.repeats,
        )
        for collective, size in spec.cases
    }


def _turn(collective: str, size: int, group: Group, spec: Spec) -> Turn:
    """Measure one turn; small values, as the tensor may become the sum of the sums."""
    call, data = COLLECTIVES[collective], torch.full((size // 4,), 2.0**-60)
    dist.barrier()
    before, start = ProcessorTime.now(spec.switches), time.perf_counter()
    for _ in range(spec.calls):
        call(data, group)
    seconds = time.perf_counter() - start
    used = ProcessorTime.now(spec.switches) - before
    return Turn(seconds / spec.calls, used.own / spec.calls, used.others / spec.calls)
