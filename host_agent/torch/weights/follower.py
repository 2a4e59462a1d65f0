# SPDX-License-Identifier: Apache-2.0
"""A thread that uses messages, so that another one receives packets meanwhile."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from weir.host_agent.weights.subscriber import Event

log = logging.getLogger(__name__)

_MOST: Final = 2
"""Messages that wait: an update, and its digest."""


class Follower(threading.Thread):
    """Uses messages one after another, in the order in which they were given.

    Args:
        name: of the thread.
        use: uses one; returns whether it was right. After one that was not, none is used until ``reset``.
    """

    def __init__(self, name: str, use: Callable[[Event], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._use = use
        self._waiting: queue.Queue[Event | None] = queue.Queue()
        self._failed = threading.Event()

    @property
    def failed(self) -> bool:
        """True after a message that was not right."""
        return self._failed.is_set()

    @property
    def has_room(self) -> bool:
        """True if more messages may be given: others wait where they are."""
        return not self.failed and self._waiting.qsize() < _MOST

    def give(self, message: Event) -> None:
        """Have a message used."""
        self._waiting.put(message)

    def reset(self) -> None:
        """Forget all messages that were given, when the one in use is done."""
        self._failed.set()
        self._waiting.join()
        self._failed.clear()

    def end(self) -> None:
        """Stop, when the message in use is done. Ending twice is harmless."""
        self._failed.set()
        if self.is_alive():
            self._waiting.put(None)
            self.join()

    def run(self) -> None:
        """See threading.Thread."""
        message: Event | None
        while True:
            message = self._waiting.get()
            if message is not None and not self.failed and not self._right(message):
                self._failed.set()
            self._waiting.task_done()
            if message is None:
                return

    def _right(self, message: Event) -> bool:
        try:
            return self._use(message)
        except Exception:  # whoever gives messages begins again
            log.exception("a message cannot be used")
            return False
