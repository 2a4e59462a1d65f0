# SPDX-License-Identifier: Apache-2.0
"""From a server's model to the workers' replicas of it, by updates alone, without ever losing a bit.

The invariant, exact at every moment:

    a replica + what is under way to it + what is pending for it = the server's model

Floats do not add up exactly, so here they are 32-bit words, and + is addition modulo 2^32, which is exact,
associative and commutative. An update says the *values* that elements of the model have now; as a summand it
is the difference in words to what they were at the replica before. It holds by construction: the feed keeps
``view``, the replica as it will be when all that is under way has arrived, so that

- pending is the server's words - ``view``, whatever the optimizer does to the model;
- an update, when made, moves its differences from pending to under way: ``view`` takes the values;
- a replica takes updates in the order of their numbers, each once: that moves them from under way to it.

What must not fail is that ``view`` and replica take the same updates; tests compare them bit by bit. It takes
the memory of ``view``, as much as a vector of pending differences would.

Workers that are fed alike (by a broadcast) share a feed, others have one each.
"""

from dataclasses import dataclass

import numpy as np

from weir.host_agent.parameter_server.payload import Patch, Words, decode, encode, plan
from weir.host_agent.parameter_server.value_filter import Bits, Floats, above


class Feed:
    """A server's side: what its readers have, and what is under way to them. For one thread at a time."""

    def __init__(self, parameters: Floats) -> None:
        """Begin with readers that have the model as it is now."""
        self.view = parameters.view(np.uint32).copy()
        self.last = 0
        """Number of the latest update, from 1."""
        self.under_way: dict[int, Words] = {}
        """Payloads by number, of those that some reader may lack."""
        self._readers: dict[int, int] = {}

    def admit(self, reader: int) -> Words:
        """Feed one more reader, and return the words that it begins with: those after update ``last``."""
        self._readers[reader] = self.last
        return self.view.copy()

    def dismiss(self, reader: int) -> None:
        """Feed a reader no more."""
        del self._readers[reader]
        self._forget()

    def acknowledge(self, reader: int, number: int) -> None:
        """Take note that a reader has taken all updates up to ``number``; an older word changes nothing."""
        if number > self.last:
            raise ValueError(f"reader {reader} has taken update {number}, and {self.last} is the latest one")
        self._readers[reader] = max(self._readers[reader], number)
        self._forget()

    def lacking(self, reader: int) -> list[tuple[int, Words]]:
        """Return what a reader has not acknowledged, in order."""
        return [item for item in self.under_way.items() if item[0] > self._readers[reader]]

    def pending(self, parameters: Floats) -> Words:
        """Return what neither readers have nor is on its way to them: a difference of words, modulo 2^32."""
        return parameters.view(np.uint32) - self.view

    def update(self, parameters: Floats, threshold: float, block: int = 1) -> Words:
        """Make the next update of what is above the threshold, and return its payload, maybe of nothing.

        The difference to the view is filtered as float32; with threshold 0 everything pending goes, also what
        differs in words alone (-0.0 and 0.0).
        """
        words = parameters.view(np.uint32)
        chosen = words != self.view
        if threshold > 0:
            with np.errstate(invalid="ignore", over="ignore"):
                chosen &= above(parameters - self.view.view(np.float32), threshold, block)
        payload = encode_covered(words, chosen, self.view)
        self.last += 1
        self.under_way[self.last] = payload
        self._forget()
        return payload

    def arrays(self) -> dict[str, Words]:
        """Return the state, by name; ``restored`` makes a feed of it."""
        readers = np.array(list(self._readers.items()), np.int64).reshape(-1, 2)
        return {
            "view": self.view,
            "last": np.array([self.last], np.uint64).view(np.uint32),
            "readers": readers.reshape(-1).view(np.uint32),
            **{f"update-{number}": payload for number, payload in self.under_way.items()},
        }

    @classmethod
    def restored(cls, arrays: dict[str, Words]) -> "Feed":
        """Return the feed whose ``arrays`` these are."""
        feed = cls(arrays["view"].view(np.float32))
        feed.last = int(arrays["last"].view(np.uint64)[0])
        readers = arrays["readers"].view(np.int64).reshape(-1, 2)
        feed._readers = {int(reader): int(number) for reader, number in readers}
        numbers = sorted(int(name.removeprefix("update-")) for name in arrays if name.startswith("update-"))
        feed.under_way = {number: arrays[f"update-{number}"] for number in numbers}
        return feed

    def _forget(self) -> None:
        known = min(self._readers.values(), default=self.last)
        for number in [number for number in self.under_way if number <= known]:
            del self.under_way[number]


def encode_covered(words: Words, chosen: Bits, view: Words) -> Words:
    """Return the payload of the chosen words, and write into ``view`` all that it covers."""
    planned = plan(chosen)
    covered = planned.covered
    view[covered] = words[covered]
    return encode(planned, words)


@dataclass
class Replica:
    """A worker's side: the model's words, which may be a view of its parameters, and the updates taken.

    taken: number of the last one. Updates that come too early wait for those before them; there are never
    more than the sender keeps under way.
    """

    words: Words
    taken: int = 0

    def __post_init__(self) -> None:
        self._early: dict[int, Patch] = {}

    def take(self, number: int, payload: Words) -> int:
        """Take an update, and those that waited for it; return how many. One that was taken counts as none.

        Raises PayloadError, and then nothing has changed.
        """
        if number <= self.taken or number in self._early:
            return 0
        self._early[number] = decode(payload, self.words.size)
        before = self.taken
        while (patch := self._early.pop(self.taken + 1, None)) is not None:
            patch.onto(self.words)
            self.taken += 1
        return self.taken - before
