# SPDX-License-Identifier: Apache-2.0
"""Times of calls that use a GPU: medians of 7, after two that do not count."""

import time
from collections.abc import Callable
from statistics import median

import torch

_WARM, _RUNS = 2, 7


def time_of(call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> str:
    """Return the milliseconds of a call in words: between two events of a GPU, and by the clock.

    Args:
        call: is timed.
        prepare: is called before each call, and is not timed.
    """
    device, wall, gpu = [], [], torch.cuda.is_available()
    for _ in range(_WARM + _RUNS):
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
    events = f"device {median(device[_WARM:]):8.3f} ms, " if gpu else ""
    return f"{events}wall {median(wall[_WARM:]):8.3f} ms"
