# SPDX-License-Identifier: Apache-2.0
"""Copies between a device and pinned host memory: the least that a sum in host memory takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from weir.bench.case import Run, UnavailableError, parameter
from weir.bench.rank import Place
from weir.bench.ranks import in_memory, run_ranks
from weir.bench.results import Column, Row, Table

WAYS: Final = ("down", "up", "both")
"""From the device, to it, and both at once."""


@dataclass(frozen=True)
class Parameters:
    """The copies."""

    workers: int = parameter(4, "Ranks, which share the device.", least=1, most=32)
    megabytes: float = parameter(256.0, "Size of a copy.", unit="MB", above=0)
    device: str = parameter("cuda", "From where and to where.", choices=("cuda", "cpu"))


@dataclass(frozen=True)
class Spec:
    """Copies of a given number of bytes, by one rank or by all at once."""

    size: int
    repeats: int
    together: bool


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure copies by one rank and by all."""
    if given.device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("device: torch finds no cuda here; device=cpu tries the case out without one")
    size, rows = round(given.megabytes * 1e6), []
    with in_memory(given.workers) as links:
        for together in (False, True):
            ranks = run_ranks(measure, Spec(size, run.repeats, together), links, given.device)
            taken = [rank for rank in ranks if rank]
            count = f"{len(taken)} rank{'s' if len(taken) > 1 else ''}"
            for way in WAYS:
                slowest = [max(each) for each in zip(*(rank[way] for rank in taken), strict=True)]
                rates = [size / seconds / 1e9 for seconds in slowest]
                copies = len(taken) * (2 if way == "both" else 1)
                values = {"GB/s": rates, "of all": [copies * rate for rate in rates]}
                rows.append(Row(way, values, {"ranks": count}))
    yield Table(
        "Copies between pinned host memory and the device",
        (
            Column("GB/s", note="of each rank, and of each direction"),
            Column("of all", note="ranks, and directions, together"),
        ),
        tuple(rows),
        better="more",
        notes=("down: from the device; both: in both directions at once",),
    )


def measure(place: Place, spec: Spec) -> dict[str, list[float]]:
    """Return the seconds of every repetition, by way; nothing of a rank that only waits."""
    takes_part = spec.together or place.rank == 0
    copies = Copies(place.device, spec.size) if takes_part else None
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        for repeat in range(spec.repeats + 1):
            began = place.begin()
            if copies is not None:
                copies.run(way)
                if repeat:  # the first one warms up
                    seconds[way].append(place.since(began))
    return seconds if takes_part else {}


class Copies:
    """Two pairs of buffers, one for each direction, and streams for them."""

    def __init__(self, device: str, size: int) -> None:
        cuda = device == "cuda"
        self._from, self._to = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        self._landed, self._waiting = (
            torch.zeros(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)
        )
        self._streams = [torch.cuda.Stream() for _ in range(2)] if cuda else []  # type: ignore[no-untyped-call]

    def run(self, way: str) -> None:
        """Start the copies of one way, each on a stream of its own."""
        if way in ("down", "both"):
            self._copy(0, self._landed, self._from)
        if way in ("up", "both"):
            self._copy(1, self._to, self._waiting)

    def _copy(self, stream: int, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._streams:
            with torch.cuda.stream(self._streams[stream]):
                target.copy_(source, non_blocking=True)
        else:
            target.copy_(source)
