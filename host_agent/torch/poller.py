# SPDX-License-Identifier: Apache-2.0
"""Calls at an interval, all of one kind in one thread: a process may have hundreds of groups."""

import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Poller:
    """Calls functions again and again, in a daemon thread that lives while there are any.

    In a fork of the process there are none.

    Args:
        name: of the thread.
        interval: returns the seconds between two rounds of calls.
    """

    def __init__(self, name: str, interval: Callable[[], float]) -> None:
        self._name, self._interval = name, interval
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []
        self._running = False

    def add(self, call: Callable[[], None]) -> None:
        """Call this, for the first time after an interval."""
        with self._lock:
            self._calls.append(call)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def remove(self, call: Callable[[], None]) -> None:
        """Call this no more, after at most one call that is under way. Removing twice is harmless."""
        with self._lock:
            if call in self._calls:
                self._calls.remove(call)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._interval())
            with self._lock:
                calls = list(self._calls)
                if not calls:
                    self._running = False
                    return
            for call in calls:
                try:
                    call()
                except Exception:
                    log.exception("%s: a call failed", self._name)
