# SPDX-License-Identifier: Apache-2.0
"""The place where ranks that disagree write down what each called, so that every error names them all."""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Final

from torch._C._distributed_c10d import Store

from weir.host_agent.collectives.operation import Call
from weir.native.json_text import parse_json

_WAIT_S: Final = 8.0  # for what the others called; torch's stores look up names, which may take 5 s
_POLL_S: Final = 0.01
_READ_S: Final = 1.0  # for the others to read it: this process may be the one that holds the store

REMEDY: Final = "Every rank must call the same collectives in the same order with the same sizes."


class CallBoard:
    """A group's part of torch's store, for the one time that its ranks disagree.

    Args:
        store: which all ranks share.
        job: a name that no other group has, nor had.
        rank, size: this process's place in the group.
    """

    def __init__(self, store: Store, job: str, rank: int, size: int) -> None:
        self._store = store
        self._prefix = f"weir/calls/{job}"
        self._rank, self._size = rank, size

    def compare(self, number: int, call: Call | None) -> str:
        """Write down what this rank called, wait shortly for the others, and return a sentence about all.

        Args:
            number: of the operation in this group.
            call: None: something that is no collective.
        """
        own = (number, str(call) if call is not None else "a reduction of its own")
        known = {self._rank: own}
        with contextlib.suppress(RuntimeError):  # a store that is gone: the own call is better than nothing
            store = self._store.clone()  # type: ignore[attr-defined]  # another thread may hold the connection while it waits
            store.set(f"{self._prefix}/{self._rank}", json.dumps(own))
            known |= self._others(store)
            if store.add(f"{self._prefix}/read", 1) == self._size:
                store.set(f"{self._prefix}/all-read", "")
            _wait(store, [f"{self._prefix}/all-read"], _READ_S)
        return sentence(known, self._size)

    def _others(self, store: Store) -> dict[int, tuple[int, str]]:
        """Return number and words of all ranks that write them in time."""
        keys = {rank: f"{self._prefix}/{rank}" for rank in range(self._size)}
        _wait(store, list(keys.values()), _WAIT_S)
        found = {}
        for rank, key in keys.items():
            if store.check([key]):
                with contextlib.suppress(ValueError, TypeError):  # of another version: it counts as silent
                    number, words = parse_json(store.get(key))
                    found[rank] = int(number), str(words)
        return found


def _wait(store: Store, keys: list[str], seconds: float) -> None:
    """Return when the keys are there, or after a while; the store's own wait shows that in the log."""
    until = time.monotonic() + seconds
    while not store.check(keys) and time.monotonic() < until:
        time.sleep(_POLL_S)


def sentence(calls: Mapping[int, tuple[int, str]], size: int) -> str:
    """Return what the ranks called, as one sentence, and what to do about it.

    Args:
        calls: of each rank that is known, the number of its operation and what it called.
        size: of the group.
    """
    first = min(number for number, _ in calls.values())
    ranks: dict[str, list[int]] = {}
    for rank, (number, words) in sorted(calls.items()):
        also = f" as operation {number}" if number != first else ""
        ranks.setdefault(f"called {words}{also}", []).append(rank)
    if silent := [rank for rank in range(size) if rank not in calls]:
        ranks["did not say what it called" if len(silent) == 1 else "did not say what they called"] = silent
    said = "; ".join(f"{_names(who)} {what}" for what, who in ranks.items())
    if len(ranks) == 1:
        said += ", each in another way: do all run the same version of Weir with the same settings?"
        return f"ranks disagree about operation {first}: {said}"
    return f"ranks disagree about operation {first}: {said}. {REMEDY}"


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
