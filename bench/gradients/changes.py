# SPDX-License-Identifier: Apache-2.0
"""Time of finding what changed between two versions of a vector: ``python -m weir.bench.changes``.

Data are random bits. Changes are at random places, or in clusters of 1,024 values of which half change.
Medians of 7 runs after two that do not count, over as many pairs of versions as a GPU's cache cannot keep.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Final

import torch

from weir.bench.device_time import time_of
from weir.host_agent.compression import kernels
from weir.host_agent.compression.changes import apply, find
from weir.host_agent.compression.transfer import pinned

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


def measure(length: int, dtype: torch.dtype, share: float, clustered: bool, device: torch.device) -> None:
    """Print the times of one share of changes."""
    copies = min(1 + _CACHED // (2 * length * dtype.itemsize), 16)
    pairs = [versions(length, dtype, share, clustered, device) for _ in range(copies)]
    turns = itertools.cycle(pairs)
    old, new = pairs[0]
    first, kept = find(old, new), old.clone()
    summary = find(None, first.mask)
    print(
        f"\n{length:,} values, {dtype}, {share:.2%} changed, {'clustered' if clustered else 'random'}: "
        f"{first.count:,} changes; MB: mask {first.mask.nbytes / 1e6:.1f}, summary and words "
        f"{(summary.mask.nbytes + summary.values.nbytes) / 1e6:.1f}, values {first.values.nbytes / 1e6:.1f}"
    )

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
    if device.type == "cuda" and kernels.available(device):
        from weir.host_agent.compression.kernels import changes as passes

        mask = first.mask.clone()
        calls["the first of two passes of find"] = lambda: passes.find(*integers(), False, mask)
    for name, call in calls.items():
        print(f"  {name:45} {time_of(call, lambda: old.copy_(kept))}")


def main() -> None:
    """Measure what the command line says."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000_000 if gpu else 20_000_000)
    parser.add_argument("--dtype", default="bfloat16", help="of torch, 1, 2 or 4 bytes a value")
    parser.add_argument("--changed", type=float, nargs="+", default=[0.01, 0.03], help="shares of the values")
    given = parser.parse_args()
    device = torch.device("cuda" if gpu else "cpu")
    print(torch.cuda.get_device_name() if gpu else "CPU", f"torch {torch.__version__}", sep=", ")
    for share, clustered in itertools.product(given.changed, (False, True)):
        measure(given.elements, getattr(torch, given.dtype), share, clustered, device)


if __name__ == "__main__":
    main()
