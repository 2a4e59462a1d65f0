# SPDX-License-Identifier: Apache-2.0
"""The log lines of a wait: what somebody waits for, after a few seconds, then less and less often."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

FIRST_S: Final = 5.0
MOST_S: Final = 60.0


@contextlib.contextmanager
def logged_wait(log: logging.Logger, reason: Callable[[], str]) -> Iterator[None]:
    """Log what the block waits for as a warning, after 5 s, 10 s, 20 s, 40 s, then every minute.

    Args:
        log: where to.
        reason: returns the words for "after 5 s still waiting for ..."; called in another thread.
    """
    done = threading.Event()
    thread = threading.Thread(target=_log, args=(log, reason, done), name="weir-wait", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


class WaitLines:
    """The same lines for a loop that looks now and then, and needs no thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._began: float | None = None
        self._due = FIRST_S

    def look(self, now: float, reason: Callable[[], str]) -> bool:
        """Log what the loop waits for, if a line is due; return whether one was.

        now: in seconds; the wait began with the first look since ``over``.
        """
        if self._began is None:
            self._began, self._due = now, FIRST_S
        if now - self._began < self._due:
            return False
        if words := reason():
            self._log.warning("after %.0f s still waiting for %s", now - self._began, words)
        self._due = next_line(self._due)
        return True

    def over(self) -> None:
        """Begin again: the wait is over, or it is another one."""
        self._began = None


def next_line(after_s: float) -> float:
    """Return when the line after the one at ``after_s`` seconds is due, in seconds of waiting."""
    return after_s + min(after_s, MOST_S)


def join_reason(status: Any, job: str) -> str:
    """Return what a join waits for, as text, of a ``StatusReply``."""
    mine = next((one for one in status.jobs if one.name == job), None)
    if mine is None:
        return f"job {job!r}, which the controller does not know yet"
    here = {member.rank for member in mine.members}
    if missing := [str(rank) for rank in range(mine.size) if rank not in here]:
        ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        return f"{ranks} of {mine.size} to join job {job!r}"
    if problems := switch_problems(status):
        return f"a switch that cannot be programmed: {problems}"
    return f"switch {', '.join(mine.leaves)} to be programmed for job {job!r}"


def switch_problems(status: Any) -> str:
    """Return what is wrong with the switches of a ``StatusReply``; "" when all are ready."""
    return "; ".join(one.problem or f"switch {one.name} is {one.state}" for one in _unready(status))


def _unready(status: Any) -> list[Any]:
    return [one for one in status.switches if one.state != "ready" and not one.given_up]


def _log(log: logging.Logger, reason: Callable[[], str], done: threading.Event) -> None:
    began, due = time.monotonic(), FIRST_S
    while not done.wait(max(0.0, began + due - time.monotonic())):
        words = reason()
        if not done.is_set():
            log.warning("after %.0f s still waiting for %s", due, words)
        due = next_line(due)
