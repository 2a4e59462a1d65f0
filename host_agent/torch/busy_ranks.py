# SPDX-License-Identifier: Apache-2.0
"""Ranks that are not missing but busy: they compile, or start a switch, before they meet the others.

A first start compiles for as long as the machine needs, which may be longer than a group's timeout. A busy
rank says so in the store once a second, and others whose time is over wait on while they hear it.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from torch._C._distributed_c10d import Store

_BEAT_S: Final = 1.0
_SILENT_S: Final = 10.0  # a rank that has said nothing for so long is busy no more


@contextlib.contextmanager
def busy(store: Store, key: str) -> Iterator[None]:
    """Say, as long as the block lasts, that this rank is busy; a short block says nothing."""
    done = threading.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone: anyone who needs it next will say so
            while not done.wait(_BEAT_S):
                store.add(key, 1)

    thread = threading.Thread(target=tell, name="weir-busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_SILENT_S)  # longer, where the store does not answer


class BusyRanks:
    """Tells whether ranks that have not come are busy; to be asked when their time is over, and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[str, int] = {}
        self._heard = self._looked = float("-inf")

    def any(self, keys: Sequence[str]) -> bool:
        """Return whether one of the ranks has said in the last seconds that it is busy.

        keys: those that ``busy`` has of the ranks.
        """
        now = time.monotonic()
        if now - self._looked >= _BEAT_S:
            self._looked = now
            for key in keys:
                count = self._store.add(key, 0) if self._store.check([key]) else None
                if count is not None and count != self._counts.get(key):
                    self._counts[key], self._heard = count, now
        return now - self._heard < _SILENT_S
