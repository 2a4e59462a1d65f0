# SPDX-License-Identifier: Apache-2.0
"""From a server's model to a worker's replica of it, by updates alone, without ever losing a bit.

The invariant, exact at every moment:

    a replica + what is under way to it + what is pending for it = the servers' model

Floats do not add up exactly, so here they are 32-bit words, and + is addition modulo 2^32, which is exact,
associative and commutative. An update says the *values* that elements of the model have now; as a summand it
is the difference in words to what they were at the replica before. It holds by construction: the feed keeps
``view``, the replica as it will be when all that is under way has arrived, so that

- pending is the server's words - ``view``, whatever the optimizer does to the model;
- an update, when made, moves its differences from pending to under way: ``view`` takes the values;
- a replica takes updates in the order of their numbers, each once: that moves them from under way to it.

Where units move, the view of them moves along. What their old server has under way is not overtaken: an
element takes no update that was made in an earlier epoch of the routing table than the last one it took.

What must not fail is that ``view`` and replica take the same updates; tests compare them bit by bit. It takes
the memory of ``view``, as much as a vector of pending differences would.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weir.host_agent.parameter_server.messages import NOTHING
from weir.host_agent.parameter_server.payload import Words, encode, plan
from weir.host_agent.parameter_server.routing import Integers
from weir.host_agent.parameter_server.value_filter import Bits, Floats, above

UNKNOWN: Final = np.uint32(0xFFFFFFFF)
"""In a view: nobody knows what the reader has. It is a NaN, which passes every filter."""


@dataclass(frozen=True, eq=False)
class Update:
    """An update: the units that it is of, as messages have them, and the epoch in which it was made."""

    payload: Words
    pushed: int = 0
    units: Words = field(default_factory=lambda: NOTHING)
    made: int = 0


class Feed:
    """A server's side: what its reader has, and what is under way to it. For one thread at a time."""

    def __init__(self, view: Words) -> None:
        """Begin with a reader that has these words."""
        self.view = view
        self.last = 0
        """Number of the latest update, from 1."""
        self.acked = 0
        """Number of the last one that the reader has taken."""
        self.under_way: dict[int, Update] = {}
        """By number, those that the reader may lack."""

    def acknowledge(self, number: int) -> None:
        """Take note that the reader has taken all updates up to ``number``; an older word changes nothing."""
        if number > self.last:
            raise ValueError(f"update {number} was taken, and {self.last} is the latest one")
        self.acked = max(self.acked, number)
        for known in [known for known in self.under_way if known <= self.acked]:
            del self.under_way[known]

    def pending(self, parameters: Floats) -> Words:
        """Return what the reader neither has nor is on its way to it: a difference of words, modulo 2^32."""
        return parameters.view(np.uint32) - self.view

    def make(
        self, parameters: Floats, threshold: float, block: int = 1, places: Integers | None = None
    ) -> tuple[Words, Bits]:
        """Make the next update of what is above the threshold, at these places (None: anywhere); return its
        payload, maybe of nothing, and which of the places it covers. ``sent`` keeps it.

        The difference to the view is filtered as float32; with threshold 0 everything pending goes, also what
        differs in words alone (-0.0 and 0.0).
        """
        words = parameters.view(np.uint32) if places is None else parameters.view(np.uint32)[places]
        view = self.view if places is None else self.view[places]
        chosen = words != view
        if not words.size:
            return NOTHING, chosen
        if threshold > 0:
            with np.errstate(invalid="ignore", over="ignore"):
                chosen &= above(words.view(np.float32) - view.view(np.float32), threshold, block)
        payload, covered = encode_covered(words, chosen, view)
        if places is not None:
            self.view[places] = view
        return payload, covered

    def sent(self, update: Update) -> int:
        """Keep an update until it is acknowledged, and return its number."""
        self.last += 1
        self.under_way[self.last] = update
        return self.last

    def arrays(self) -> dict[str, Words]:
        """Return the state, by name; ``restored`` makes a feed of it."""
        return {
            "view": self.view,
            "numbers": np.array([self.last, self.acked], np.uint32),
            **{
                f"update-{number}-{one.pushed}-{one.made}-{part}": words
                for number, one in self.under_way.items()
                for part, words in (("payload", one.payload), ("units", one.units))
            },
        }

    @classmethod
    def restored(cls, arrays: dict[str, Words]) -> "Feed":
        """Return the feed whose ``arrays`` these are."""
        feed = cls(arrays["view"])
        feed.last, feed.acked = map(int, arrays["numbers"])
        for name, payload in arrays.items():
            if name.startswith("update-") and name.endswith("-payload"):
                number, pushed, made = map(int, name.split("-")[1:4])
                units = arrays[name.removesuffix("payload") + "units"]
                feed.under_way[number] = Update(payload, pushed, units, made)
        return feed


def encode_covered(words: Words, chosen: Bits, view: Words) -> tuple[Words, Bits]:
    """Return the payload of the chosen words and which it covers, and write these into ``view``."""
    planned = plan(chosen)
    covered = planned.covered
    view[covered] = words[covered]
    return encode(planned, words), covered
