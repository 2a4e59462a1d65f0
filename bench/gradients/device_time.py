# SPDX-License-Identifier: Apache-2.0
"""Times of calls that use a GPU, if there is one."""

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import torch

from weir.bench.results import Column, Row, Scalar, Value

_WARM: Final = 2

TIMES: Final = (
    Column("ms", lambda n: f"{n:.3f}", "by the clock"),
    Column("device ms", lambda n: f"{n:.3f}", "between two events of a GPU"),
)


def times_of(
    call: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None
) -> dict[str, list[float] | None]:
    """Return the milliseconds of a call, after two that do not count, by the names of ``TIMES``.

    prepare: is called before each call, and is not timed.
    """
    device, wall, gpu = list[float](), list[float](), torch.cuda.is_available()
    for _ in range(_WARM + repeats):
        prepare()
        if gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            begin.record()
        began = time.perf_counter()
        call()
        if gpu:
            end.record()
            end.synchronize()
            device.append(begin.elapsed_time(end))
        wall.append(1e3 * (time.perf_counter() - began))
    return {"ms": wall[_WARM:], "device ms": device[_WARM:] or None}


def rows(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    setting: Mapping[str, Scalar],
    prepare: Callable[[], object],
    others: Mapping[str, Value] = MappingProxyType({}),
) -> Iterator[Row]:
    """Yield a row with the times of each call. others: further values of all rows."""
    for name, call in calls.items():
        yield Row(name, {**times_of(call, repeats, prepare), **others}, setting)


def device() -> torch.device:
    """Return the GPU if there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_words() -> str:
    """Return what the calls run on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: on the processor"
