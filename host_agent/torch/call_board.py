# SPDX-License-Identifier: Apache-2.0
"""The place where ranks that disagree write down what each did, so that every error names them all."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from torch._C._distributed_c10d import Store

from softp4.native.json_text import parse_json
from weir.host_agent.collectives.operation import Call
from weir.host_agent.torch.silent_store import within

T = TypeVar("T")

_WAIT_S: Final = 8.0  # for what the others called; torch's stores look up names, which may take 5 s
_POLL_S: Final = 0.01
_READ_S: Final = 1.0  # for the others to read it: this process may be the one that holds the store

REMEDY: Final = "Every rank must call the same collectives in the same order with the same sizes."


class Said(NamedTuple):
    """One rank's statement: the number of its operation, its call or failure as text, whether it failed."""

    number: int
    words: str
    failed: bool = False


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
        """Write down what this rank did, wait shortly for the others, and return a sentence about all.

        Args:
            number: of the operation in this group.
            call: None: something that is no collective.
        """
        words = call.said if call is not None else "called a reduction of its own"
        own = Said(number, words, failed=call is not None and bool(call.failure))
        known = {self._rank: own}
        with contextlib.suppress(RuntimeError):  # a store that is gone: the own call is better than nothing
            self._exchange_calls(own, known)
        return sentence(known, self._size)

    def _exchange_calls(self, own: Said, known: dict[int, Said]) -> None:
        """Write down what this rank says, and add to ``known`` what all ranks say that do so in time."""
        until = time.monotonic() + _WAIT_S
        end = until + 2 * _READ_S
        # A connection of its own: another thread may hold the store's while it waits.
        store = _soon(end, self._store.clone)  # type: ignore[attr-defined]
        _soon(end, lambda: store.set(f"{self._prefix}/{self._rank}", json.dumps(own)))
        keys = {rank: f"{self._prefix}/{rank}" for rank in range(self._size)}
        _wait(store, list(keys.values()), until, end)
        known |= _soon(end, lambda: _read(store, keys))
        if _soon(end, lambda: store.add(f"{self._prefix}/read", 1)) == self._size:
            _soon(end, lambda: store.set(f"{self._prefix}/all-read", ""))
        _wait(store, [f"{self._prefix}/all-read"], min(time.monotonic(), until) + _READ_S, end)


def _soon(end: float, call: Callable[[], T]) -> T:
    """Return what a call to a store returns. Raises StoreSilentError when it does not until ``end``."""
    return within(max(end - time.monotonic(), 0.0), call)


def _read(store: Store, keys: dict[int, str]) -> dict[int, Said]:
    """Return what those ranks say that have said something."""
    found = {}
    for rank, key in keys.items():
        if store.check([key]):
            with contextlib.suppress(ValueError, TypeError):  # of another version: it counts as silent
                number, words, failed = parse_json(store.get(key))
                found[rank] = Said(int(number), str(words), bool(failed))
    return found


def _wait(store: Store, keys: list[str], until: float, end: float) -> None:
    """Return when the keys are there, or at a time; the store's own wait shows that in the log."""
    while not _soon(end, lambda: store.check(keys)) and time.monotonic() < until:
        time.sleep(_POLL_S)


def sentence(said: Mapping[int, Said], size: int) -> str:
    """Return what the ranks did, as one sentence, and what to do about it.

    Args:
        said: of each rank that is known.
        size: of the group.
    """
    first = min(one.number for one in said.values())
    ranks: dict[str, list[int]] = {}
    for rank, one in sorted(said.items(), key=lambda item: (not item[1].failed, item[0])):
        also = f" as operation {one.number}" if one.number != first else ""
        ranks.setdefault(f"{one.words}{also}", []).append(rank)
    if silent := [rank for rank in range(size) if rank not in said]:
        ranks["did not say what it called" if len(silent) == 1 else "did not say what they called"] = silent
    words = "; ".join(f"{_names(who)} {what}" for what, who in ranks.items())
    if any(one.failed for one in said.values()):
        return f"operation {first} cannot be completed: {words}"
    if len(ranks) == 1:
        words += ", each in another way: do all run the same version of Weir with the same settings?"
        return f"ranks disagree about operation {first}: {words}"
    return f"ranks disagree about operation {first}: {words}. {REMEDY}"


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
