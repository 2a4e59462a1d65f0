# SPDX-License-Identifier: Apache-2.0
"""Threads that outlive what goes wrong in them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Failures:
    """Logs exceptions of work that goes on: the first, second, fourth, eighth and so on, that no log floods.

    Args:
        log: where to.
        what: what an exception means, such as "a packet was lost".
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._seen = 0

    @contextmanager
    def survived(self) -> Iterator[None]:
        """Let an exception inside end the work inside, and no more."""
        try:
            yield
        except Exception:
            self._seen += 1
            if self._seen.bit_count() == 1:
                self._log.exception("%s (%d so far)", self._what, self._seen)
