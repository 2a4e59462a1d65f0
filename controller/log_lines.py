# SPDX-License-Identifier: Apache-2.0
"""The log of what anybody can make the controller write: lines that are alike are counted, not repeated."""

import asyncio
import logging
import time

from weir.controller.throttle import REPEAT_S, Repeats


class LogLines:
    """A log in which lines of one kind come at most every REPEAT_S. For one event loop.

    Args:
        log: where to.
        first: of a kind, this many lines are written at once; then how many more there were.
    """

    def __init__(self, log: logging.Logger, first: int = 1) -> None:
        self._log, self._first = log, first
        self._repeats = Repeats()
        self._flush: asyncio.TimerHandle | None = None

    def write(self, kind: str, line: str, level: int = logging.WARNING) -> None:
        """Write a line, or count it."""
        if self._repeats.admit(kind, line, time.monotonic(), level, self._first):
            self._log.log(level, "%s", line)
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(REPEAT_S, self._write_due)

    def close(self) -> None:
        """Write the lines that are still to come."""
        if self._flush is not None:
            self._flush.cancel()
            self._write_due(time.monotonic() + REPEAT_S)

    def _write_due(self, now: float | None = None) -> None:
        for level, line in self._repeats.due(time.monotonic() if now is None else now):
            self._log.log(level, "%s", line)
        self._flush = None
        if now is None and self._repeats.any:
            self._flush = asyncio.get_running_loop().call_later(REPEAT_S, self._write_due)
