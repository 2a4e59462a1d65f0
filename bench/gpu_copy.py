# SPDX-License-Identifier: Apache-2.0
"""Copies between a device and pinned host memory: the least that a sum in host memory takes."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch

from weir.bench.gpu_place import Place

WAYS: Final = ("down", "up", "both")
"""From the device, to it, and both at once."""


@dataclass(frozen=True)
class CopyItem:
    """Copies of a given number of bytes, by one rank or by all at once."""

    case: ClassVar[str] = "copy"

    device: str
    together: bool
    size: int
    repeats: int

    @property
    def name(self) -> str:
        """Name in progress reports."""
        return "copies by all ranks" if self.together else "copies by one rank"

    def run(self, place: Place) -> dict[str, Any]:
        """Return the seconds of every repetition, by way; of a rank that only waits, none."""
        takes_part = self.together or place.rank == 0
        copies = Copies(self.device, self.size) if takes_part else None
        seconds: dict[str, list[float]] = {}
        for way in WAYS:
            seconds[way] = []
            for repeat in range(self.repeats + 1):
                began = place.begin()
                if copies is not None:
                    copies.run(way)
                    if repeat:  # the first one warms up
                        seconds[way].append(place.since(began))
        return {"seconds": seconds if takes_part else {}}


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
