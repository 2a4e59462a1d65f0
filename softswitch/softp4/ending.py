# SPDX-License-Identifier: Apache-2.0
"""The end of a switch process: asked for by a signal, or by a thread that has nothing left to do."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Ended(BaseException):
    """A signal asked for the end of something that was not to be waited for."""


class Ending:
    """A flag like ``threading.Event``, without a lock, so that a signal's handler may set it.

    A handler runs in the main thread, between any two steps of it. So it may interrupt an ``Event.set`` or
    ``Event.wait`` that holds the event's lock, and would then wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._interrupts = False

    def set(self) -> None:
        """Set the flag, from any thread or signal handler. It stays set."""
        os.eventfd_write(self._descriptor, 1)

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set, but no longer than that. Return whether it is."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(1000.0 * seconds))

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let the first signal raise Ended in this block, which may take long, or one that came before.

        It sets the flag besides.
        """
        self._interrupts = True
        try:
            if self.is_set():  # by a signal that came before
                raise Ended
            yield
        finally:
            self._interrupts = False

    def signalled(self, *_: object) -> None:
        """Handle a signal."""
        self.set()
        if self._interrupts:
            self._interrupts = False
            raise Ended

    def close(self) -> None:
        """Free the flag, which nobody may use any more."""
        os.close(self._descriptor)


@contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """Yield a flag that SIGINT and SIGTERM set; afterwards both do what they did before.

    What is opened in the block is closed in it too: no further signal may interrupt that, because a thread
    that is left behind keeps the process alive.
    """
    ending = Ending()
    handlers = {each: signal.signal(each, ending.signalled) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ending.close()
