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

from weir.agent_service.waiting import FIRST_S, next_line
from weir.host_agent.transport.operations import complete

log = logging.getLogger(__name__)

T = TypeVar("T")

WHO: Final = (
    "torch's store, which torchrun or rank 0 holds, to answer: does that process run, or is it stopped?"
)


class StoreSilentError(RuntimeError):
    """The store did not answer in time."""


def within(seconds: float, call: Callable[[], T], *, waits_s: float = 0.0) -> T:
    """Return what a call to a store returns; the log says after 5 s that there is no answer.

    Args:
        seconds: how long to wait for an answer.
        call: runs in a thread of its own.
        waits_s: how long the store itself may wait before it answers.

    Raises:
        StoreSilentError: there was none. The call goes on.
    """
    outcome: Future[T] = Future()
    threading.Thread(target=complete, args=(outcome, call), name="weir-store", daemon=True).start()
    began, due = time.monotonic() + waits_s, FIRST_S
    while True:
        waited = time.monotonic() - began  # below zero as long as that is the store's own
        if waited >= seconds:
            raise StoreSilentError(f"after {seconds:g} s still waiting for {WHO}")
        if waited >= due:
            log.warning("after %.0f s still waiting for %s", due, WHO)
            due = next_line(due)
        try:
            return outcome.result(min(due, seconds) - waited)
        except TimeoutError:
            if outcome.done():
                raise  # the call's own
