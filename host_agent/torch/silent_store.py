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


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call to a store returns; the log says after 5 s that there is no answer.

    Raises:
        StoreSilentError: it took longer than ``seconds``. The call goes on in a thread of its own.
    """
    outcome: Future[T] = Future()
    threading.Thread(target=complete, args=(outcome, call), name="weir-store", daemon=True).start()
    began, due = time.monotonic(), FIRST_S
    while True:
        waited = time.monotonic() - began
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
