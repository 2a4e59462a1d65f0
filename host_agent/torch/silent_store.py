# SPDX-License-Identifier: Apache-2.0
"""Calls to torch's store that end although nobody answers: its process may be stopped, as a launcher can be.

Some calls of torch's TCP store wait for ever, whatever its timeout.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from weir.agent_service.waiting import WaitLines
from weir.host_agent.transport.operations import complete

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_S: Final = 0.2  # how often, at least, to see whether a line of the log is due

WHO: Final = (
    "torch's store, which torchrun or rank 0 holds, to answer: does that process run, or is it stopped?"
)


class StoreSilentError(RuntimeError):
    """The store did not answer in time."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call to a store returns; the log says after 5 s that there is no answer.

    Args:
        seconds: how long to wait for an answer.
        call: runs in a thread of its own, which does not keep the process alive. It must not wait: a process
            that ends while a call of the store's is under way is aborted.

    Raises:
        StoreSilentError: there was none. The call goes on.
    """
    outcome: Future[T] = Future()
    threading.Thread(target=complete, args=(outcome, call), name="weir-store", daemon=True).start()
    lines, until = WaitLines(log), time.monotonic() + seconds
    while True:
        now = time.monotonic()
        lines.look(now, lambda: WHO)
        try:
            return outcome.result(min(_LOOK_S, max(until - now, 0.0)))
        except TimeoutError:
            if outcome.done():
                return outcome.result()  # a timeout of the call's own, or it has just ended
        if time.monotonic() >= until:
            raise StoreSilentError(f"after {seconds:g} s still waiting for {WHO}")
