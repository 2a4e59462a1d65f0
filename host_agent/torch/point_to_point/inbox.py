# SPDX-License-Identifier: Apache-2.0
"""Messages and the receives that take them: matched by sender and tag, in the order of both sides."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field


def _at_once() -> bool:
    return True


@dataclass(eq=False)
class Send:
    """A message to a rank. ``outcome`` is settled when its bytes are on their way to a receive that fits.

    ``is_ready`` tells whether ``data`` holds the message yet.
    """

    destination: int
    tag: int
    dtype: str
    data: memoryview
    is_ready: Callable[[], bool] = _at_once
    outcome: Future[int] = field(default_factory=Future)


@dataclass(eq=False)
class Receive:
    """A wish for a message of this tag from ``source``, or from anybody when that is None.

    ``outcome`` becomes the sender's rank when ``data`` holds the message and ``finish`` was called.
    """

    source: int | None
    tag: int
    dtype: str
    data: memoryview
    finish: Callable[[], None]
    outcome: Future[int] = field(default_factory=Future)


@dataclass(frozen=True)
class Offer:
    """A message that ``source`` has for this rank; ``number`` is its sender's."""

    source: int
    number: int
    tag: int
    size: int
    dtype: str

    def misfit(self, receive: Receive, rank: int) -> str | None:
        """Return why it cannot go into a receive of rank ``rank``, or None when it can."""
        if (self.size, self.dtype) == (receive.data.nbytes, receive.dtype):
            return None
        return (
            f"rank {self.source} sends {self.size} bytes of {self.dtype} to rank {rank} (tag {self.tag}), "
            f"which receives {receive.data.nbytes} bytes of {receive.dtype}: "
            "size and dtype must be the same on both"
        )


class Inbox:
    """Offers that no receive has taken, and receives that no offer fits, each in their order."""

    def __init__(self) -> None:
        self._offers: list[Offer] = []
        self._receives: list[Receive] = []

    def post(self, receive: Receive) -> Offer | None:
        """Return the first offer for a receive; without one the receive waits."""
        for offer in self._offers:
            if _meets(receive, offer):
                self._offers.remove(offer)
                return offer
        self._receives.append(receive)
        return None

    def offered(self, offer: Offer) -> Receive | None:
        """Return the first receive for an offer; without one the offer waits."""
        for receive in self._receives:
            if _meets(receive, offer):
                self._receives.remove(receive)
                return receive
        self._offers.append(offer)
        return None

    def forget(self, source: int) -> None:
        """Drop the offers of a rank that is gone."""
        self._offers = [offer for offer in self._offers if offer.source != source]

    def take(self, fits: Callable[[Receive], bool]) -> list[Receive]:
        """Remove and return the waiting receives that ``fits`` is true of."""
        taken = [receive for receive in self._receives if fits(receive)]
        self._receives = [receive for receive in self._receives if receive not in taken]
        return taken


def _meets(receive: Receive, offer: Offer) -> bool:
    return receive.tag == offer.tag and receive.source in (None, offer.source)
