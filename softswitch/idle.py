# SPDX-License-Identifier: Apache-2.0
"""Idle times of a table's entries: which of them no packet has hit for how long."""

from typing import Final

from softswitch.bindings import Library
from softswitch.entry import Match

Identity = tuple[tuple[Match, ...], int]
"""Key and priority of an entry."""

_BATCH: Final = 1024  # entries reported by one native call


class IdleTimes:
    """The timers of one table. Not thread-safe by itself.

    An entry's timer runs from its last packet, or else from the first time the switch is told after the entry
    was made; and again from each time it has run out.
    """

    def __init__(self, library: Library, switch: int, number: int) -> None:
        self._library = library
        self._switch = switch
        self._number = number
        self._entries: dict[int, Identity] = {}
        self._next = 0  # nothing runs out before

    def begin(self, handle: int, identity: Identity, timeout_ns: int) -> None:
        """A new entry; `timeout_ns` 0: it never times out."""
        self._entries[handle] = identity
        self._library.begin_idle(self._switch, self._number, handle)
        self.set_timeout(handle, timeout_ns)

    def set_timeout(self, handle: int, timeout_ns: int) -> None:
        """Another timeout, from the last packet on."""
        self._library.set_timeout(self._switch, self._number, handle, timeout_ns)
        self._next = 0

    def end(self, handle: int) -> None:
        """The entry is gone."""
        del self._entries[handle]

    def idle_time(self, handle: int) -> int:
        """Nanoseconds since the entry's last packet, or since it was made."""
        return self._library.idle_time(self._switch, self._number, handle)

    def expired(self, now: int) -> list[Identity]:
        """The entries that have timed out by `now` (nanoseconds)."""
        if now < self._next:
            return []
        handles, self._next = self._library.expire(self._switch, self._number, now, _BATCH)
        return [self._entries[handle] for handle in handles]
