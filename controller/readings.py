# SPDX-License-Identifier: Apache-2.0
"""The switches' counters as they were read last, so that many who ask at a time make one reading."""

import asyncio
import math
from collections.abc import Callable, Mapping

from weir.controller.reconciler import Reading, SwitchReconciler
from weir.controller.switch_client import SwitchError


class Readings:
    """The counters of all switches, read when somebody asks, never twice at a time. For one event loop.

    Args:
        reconcilers: the switches', by name.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, reconcilers: Mapping[str, SwitchReconciler], clock: Callable[[], float]) -> None:
        self._reconcilers, self._clock = reconcilers, clock
        self._began = -math.inf
        self._last: dict[str, Reading] = {}
        self._under_way: asyncio.Task[None] | None = None

    async def not_older(self, seconds: float) -> dict[str, Reading]:
        """Return a reading of each switch that began at most so long before this call; after it, for 0.

        One that cannot be asked has no counters.
        """
        oldest = self._clock() - seconds
        while self._began < oldest:
            if self._under_way is None:
                self._under_way = asyncio.create_task(self._read())
            await asyncio.shield(self._under_way)  # others wait for it, too
        return self._last

    async def _read(self) -> None:
        began = self._clock()
        try:
            readings = await asyncio.gather(*map(_reading, self._reconcilers.values()))
            self._last = dict(zip(self._reconcilers, readings, strict=True))
            self._began = began
        finally:
            self._under_way = None


async def _reading(reconciler: SwitchReconciler) -> Reading:
    try:
        return await reconciler.read()
    except SwitchError:
        return Reading()
