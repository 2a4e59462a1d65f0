# SPDX-License-Identifier: Apache-2.0
"""Keeps shards of weights at one version: an update is used when it is there for all of them."""

import contextlib
import threading
from collections.abc import Iterator

from weir.host_agent.weights.subscriber import Event, Message


class Gate:
    """The common state of all shards' subscriptions; one subscription alone has a gate that lets all through.

    Attributes:
        changed: condition of everything that subscriptions say.
    """

    def __init__(self, shards: int) -> None:
        self.changed = threading.Condition()
        self._lock = threading.Lock()  # of all that follows: threads of packets do not wait for ``changed``
        self._there = [0] * shards  # by shard: its newest version that is used, or waits here
        self._used = [0] * shards  # by shard: its newest version that is used, or being used
        self._still = False

    def lets_through(self, shard: int, message: Event) -> bool:
        """Return whether a shard may use a message now. If not, it asks again, with the same one."""
        if not isinstance(message, Message):
            return True
        number = message.name.number
        with self._lock:
            self._there[shard] = number
            limit = max(self._used) if self._still else number
            may = message.name.snapshot or number <= min(limit, *self._there)
            if may:
                self._used[shard] = number
            return may

    def forget(self, shard: int) -> None:
        """Say that a shard has no version."""
        with self._lock:
            self._there[shard] = self._used[shard] = 0
        with self.changed:
            self.changed.notify_all()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Let no shard begin an update beyond the newest version that one of them uses."""
        self._still = True
        try:
            yield
        finally:
            self._still = False

    @property
    def newest(self) -> int:
        """The newest version that a shard uses, if all shards have what they need to come to it; else 0."""
        with self._lock:
            newest = max(self._used)
            return newest if min(self._there) >= newest else 0
