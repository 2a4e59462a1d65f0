# SPDX-License-Identifier: Apache-2.0
"""Time of finding what changed between two versions of a vector.

Data are random bits. Changes are at random places, or in clusters of 1,024 values of which half change. There
are as many pairs of versions as a GPU's cache cannot keep.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from weir.bench.case import ParameterError, Run, parameter
from weir.bench.gradients.device_time import TIMES, device, device_words, rows
from weir.bench.results import Column, Row, Table
from weir.host_agent.compression import kernels
from weir.host_agent.compression.changes import apply, find
from weir.host_agent.compression.transfer import pinned
from weir.report.words import byte_count

_CLUSTER: Final = 1024
_CHUNK: Final = 1 << 26
_CACHED: Final = 1 << 28  # bytes: more than a cache has
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def versions(
    length: int, dtype: torch.dtype, share: float, clustered: bool, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an old version, and a new one that differs in such a share of the values."""
    integer = _INTEGERS[dtype.itemsize]
    limits = torch.iinfo(integer)
    old = torch.empty(length, dtype=integer, device=device).random_(limits.min, limits.max)
    new = old.clone()
    for start in range(0, length, _CHUNK):
        part = new[start : start + _CHUNK]
        changed = torch.rand(part.numel(), device=device) < (0.5 if clustered else share)
        if clustered:
            chosen = torch.rand(-(-part.numel() // _CLUSTER), device=device) < 2 * share
            changed &= chosen.repeat_interleave(_CLUSTER)[: part.numel()]
        part ^= changed.to(integer)
    return old.view(dtype), new.view(dtype)


@dataclass(frozen=True)
class Parameters:
    """The vector, and what changes."""

    elements: int = parameter(20_000_000, "of the vector", least=1024)
    dtype: str = parameter("bfloat16", "of torch, 1, 2 or 4 bytes a value")
    changed: tuple[float, ...] = parameter((0.01, 0.03), "shares of the values", above=0, most=0.5)

    def __post_init__(self) -> None:
        kind = getattr(torch, self.dtype, None)
        if not isinstance(kind, torch.dtype) or kind.itemsize not in _INTEGERS:
            raise ParameterError(f"dtype: one of torch's, 1, 2 or 4 bytes a value, not {self.dtype!r}")


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Measure on a GPU if there is one."""
    dtype = getattr(torch, parameters.dtype)
    yield Table(
        f"Changes of {parameters.elements:,} values, {parameters.dtype}",
        (
            *TIMES,
            Column("changes"),
            *(Column(name, byte_count) for name in ("mask", "summary", "values")),
        ),
        tuple(
            row
            for share, clustered in itertools.product(parameters.changed, (False, True))
            for row in measure(parameters.elements, dtype, share, clustered, run.repeats)
        ),
        notes=(device_words(),),
    )


def measure(length: int, dtype: torch.dtype, share: float, clustered: bool, repeats: int) -> Iterator[Row]:
    """Yield the times of one share of changes."""
    copies = min(1 + _CACHED // (2 * length * dtype.itemsize), 16)
    pairs = [versions(length, dtype, share, clustered, device()) for _ in range(copies)]
    turns = itertools.cycle(pairs)
    old, new = pairs[0]
    first, kept = find(old, new), old.clone()
    summary = find(None, first.mask)
    sizes = {
        "mask": first.mask.nbytes,
        "summary": summary.mask.nbytes + summary.values.nbytes,
        "values": first.values.nbytes,
    }

    def compact() -> None:
        changes = find(*next(turns))
        above = find(None, changes.mask)
        pinned(above.mask, above.values, changes.values)

    def integers() -> tuple[torch.Tensor, torch.Tensor]:
        before, after = (version.view(_INTEGERS[dtype.itemsize]) for version in next(turns))
        return before, after

    def plainly() -> None:
        before, after = integers()
        pinned(after[before != after])

    calls: dict[str, Callable[[], object]] = {
        "find": lambda: find(*next(turns)),
        "find, update": lambda: find(old, new, update=True),
        "find, mask and values to the host": lambda: find(*next(turns)).on_host(),
        "find, summary, words and values to the host": compact,
        "apply": lambda: apply(old, first),
        "torch: new[old != new] to the host, no mask": plainly,
    }
    if old.is_cuda and kernels.available(old.device):
        from weir.host_agent.compression.kernels import changes as passes

        mask = first.mask.clone()
        calls["the first of two passes of find"] = lambda: passes.find(*integers(), False, mask)
    setting = {"changed": f"{share:.2%}", "where": "clustered" if clustered else "random"}
    counts = {"changes": first.count, **sizes}
    yield from rows(calls, repeats, setting, lambda: old.copy_(kept), counts)
