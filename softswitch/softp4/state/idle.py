# SPDX-License-Identifier: Apache-2.0
"""Idle times of a table's entries: which of them no packet has hit for how long."""

import heapq
import itertools

from softp4.runtime.bindings import NativeSwitch
from softp4.runtime.queueing import NEVER

Identity = bytes
"""The packed key of an entry."""


class IdleTimes:
    """The timers of one table. Not thread-safe by itself.

    An entry's timer runs from its last packet, or else from the first time the switch is told after the entry
    was made; and again from each time it has run out. Packets only note their time: that a timer has not run
    out after all shows when it is looked at.
    """

    def __init__(self, native: NativeSwitch, number: int) -> None:
        self._native = native
        self._number = number
        self._entries: dict[int, tuple[Identity, int]] = {}  # by handle, with the serial number of the timer
        self._serials = itertools.count()
        self._new: dict[int, None] = {}  # handles of timers that have not been looked at
        self._timers: list[tuple[int, int, int]] = []  # a heap: when to look, serial number, handle

    def begin(self, handle: int, identity: Identity, timeout_ns: int) -> None:
        """Start the timer of a new entry, which with `timeout_ns` 0 never times out."""
        self._native.begin_idle(self._number, handle)
        self._start(handle, identity, timeout_ns)

    def set_timeout(self, handle: int, timeout_ns: int) -> None:
        """Change the timeout of an entry, from its last packet on."""
        self._start(handle, self._entries[handle][0], timeout_ns)

    def _start(self, handle: int, identity: Identity, timeout_ns: int) -> None:
        serial = next(self._serials)
        self._entries[handle] = identity, serial
        self._native.set_timeout(self._number, handle, timeout_ns)
        self._new[handle] = None

    def end(self, handle: int) -> None:
        """Forget an entry that is gone."""
        del self._entries[handle]
        self._new.pop(handle, None)

    def idle_time(self, handle: int) -> int:
        """Return nanoseconds since the entry's last packet, or since it was made."""
        return self._native.idle_time(self._number, handle)

    def expired(self, now: int) -> list[Identity]:
        """Return the entries that have timed out by `now` (nanoseconds)."""
        look = list(self._new)
        self._new.clear()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)
            if self._runs(timer):
                look.append(timer[2])
        found = [self._entries[handle][0] for handle in look if self._look(handle, now)]
        if len(self._timers) > 2 * len(self._entries):
            self._timers = [timer for timer in self._timers if self._runs(timer)]
            heapq.heapify(self._timers)
        return found

    def _runs(self, timer: tuple[int, int, int]) -> bool:
        """Return whether a timer is still that of an entry."""
        _, serial, handle = timer
        return handle in self._entries and self._entries[handle][1] == serial

    def _look(self, handle: int, now: int) -> bool:
        """Return whether a timer has run out; when to look again is noted."""
        out, due = self._native.expire(self._number, handle, now)
        if due != NEVER:
            heapq.heappush(self._timers, (due, self._entries[handle][1], handle))
        return out
