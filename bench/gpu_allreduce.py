# SPDX-License-Identifier: Apache-2.0
"""One all-reduce of float32 over Gloo and over Weir, by the same ranks in turns, checked against Gloo."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.distributed as dist

from weir.bench.gpu_place import Place
from weir.host_agent.collectives.packing import LaneBits, lane_format

_LARGEST: Final = 6.7  # of 2^34 normal numbers, about
_LEAST_REPEATS: Final = 3
_BITS: Final[dict[str, LaneBits]] = {"weir": 32, "weir-local": 32, "weir-16": 16, "weir-8": 8}
CONTENDERS: Final = {
    "gloo": "Gloo",
    "gloo-4": "4 Gloo groups",
    "weir": "Weir",
    "weir-16": "Weir 16",
    "weir-8": "Weir 8",
    "weir-local": "Weir local",
}
"""Contenders in words; every one is compared with the first."""


@dataclass(frozen=True)
class AllreduceItem:
    """All-reduces of one size.

    elements: of the float32 tensor. contenders: keys of ``CONTENDERS``, the first one first. repeats: of
    each; fewer, but 3 at least, where they take more than ``seconds`` together. threads: of the switch.
    """

    case: ClassVar[str] = "allreduce"

    device: str
    elements: int
    contenders: tuple[str, ...]
    repeats: int
    seconds: float
    threads: int = 1

    @property
    def name(self) -> str:
        """Name in progress reports."""
        many = f", {self.threads} threads" if self.threads > 1 else ""
        return f"all-reduce of {4 * self.elements / 1e6:g} MB, {self.device}{many}"

    def run(self, place: Place) -> dict[str, Any]:
        """Return by contender the seconds of every repetition, and how far sums are from Gloo's."""
        generator = torch.Generator(self.device).manual_seed(100 + place.rank)
        source = torch.randn(self.elements, generator=generator, device=self.device)
        seconds: dict[str, list[float]] = {name: [] for name in self.contenders}
        wanted = dict.fromkeys(self.contenders, self.repeats)
        errors = dict.fromkeys(self.contenders, 0.0)
        for name in self.contenders:  # which makes the groups
            all_reduce(torch.ones(1024, device=self.device), name, place)
        for turn in range(self.repeats + 1):
            peer = torch.empty(0)
            for name in self.contenders:
                if turn > wanted[name] and name != "gloo":  # whose sum the others are compared with
                    continue
                data = source.clone()
                began = place.begin()
                all_reduce(data, name, place)
                taken = place.since(began)
                if turn == 0:  # which warms up
                    fit = self.seconds / place.most(taken)
                    wanted[name] = min(self.repeats, max(_LEAST_REPEATS, int(fit)))
                elif turn <= wanted[name]:
                    seconds[name].append(taken)
                if name == "gloo":
                    peer = data
                else:
                    errors[name] = max(errors[name], float(data.sub_(peer).abs_().max()))
            if turn >= max(wanted.values()):
                break
        return {"seconds": seconds, "errors": errors}

    def bound(self, contender: str, workers: int) -> float:
        """Return how far a right sum may be from Gloo's."""
        if contender not in _BITS:
            return 1e-5
        return max(1e-5, lane_format(_BITS[contender], 0.0, workers).error * workers * _LARGEST)


def all_reduce(data: torch.Tensor, contender: str, place: Place) -> None:
    """Sum a tensor over all ranks, in place."""
    if contender == "gloo":
        dist.all_reduce(data)
    elif contender == "gloo-4":
        groups = place.pieces()
        parts = zip(data.tensor_split(len(groups)), groups, strict=True)
        works = [dist.all_reduce(part, group=group, async_op=True) for part, group in parts]
        for work in works:
            assert work is not None
            work.wait()
    else:
        dist.all_reduce(data, group=place.weir(_BITS[contender], local=contender == "weir-local"))
