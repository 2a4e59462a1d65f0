# SPDX-License-Identifier: Apache-2.0
"""The limits on how often and how many at a time: wrong tokens, calls that wait, log lines. No I/O, no clock.

Times are seconds of any monotonic clock.
"""

import hashlib
import logging
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

FREE_GUESSES: Final = 10  # wrong tokens from one address for one job that cost nothing
GUESS_EVERY_S: Final = 1.0  # then one token is looked at in this time
FORGIVEN_AFTER_S: Final = 60.0  # one wrong token
MOST_WAIT_S: Final = 5.0  # for a token to be looked at; more attempts are refused
_MOST_KEYS: Final = 4096  # addresses with jobs that are remembered

MOST_WAITING: Final = 32768  # joins that wait at a time: a job's workers
MOST_WAITING_OF_ONE: Final = 1024  # of one address

REPEAT_S: Final = 10.0  # a kind of log line is written at most once in this time
_MOST_KINDS: Final = 256


@dataclass
class _Guesses:
    wrong: float
    counted_at: float
    next_at: float
    last: deque[bytes] = field(default_factory=lambda: deque(maxlen=FREE_GUESSES))  # digests

    def left(self, now: float) -> float:
        """Return the wrong tokens that are not forgiven yet."""
        return max(0.0, self.wrong - (now - self.counted_at) / FORGIVEN_AFTER_S)


class TokenGuesses:
    """The wrong tokens of each address and job, and when the next token is looked at.

    Other addresses and other jobs are not slowed. Who repeats a wrong token learns nothing new, so it counts
    once: the workers of a job have all the same one.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[str, str], _Guesses] = OrderedDict()

    def turn(self, who: str, job: str, token: str, now: float) -> float | None:
        """Return the seconds until a token may be looked at; None when too many others wait already."""
        found = self._of.get((who, job))
        if found is None or found.left(now) < FREE_GUESSES or _digest(token) in found.last:
            return 0.0
        at = max(found.next_at, now)
        if at - now > MOST_WAIT_S:
            return None
        found.next_at = at + GUESS_EVERY_S
        return at - now

    def wrong(self, who: str, job: str, token: str, now: float) -> None:
        """Count a wrong token."""
        found = self._of.pop((who, job), None) or _Guesses(0.0, now, now)
        if (digest := _digest(token)) not in found.last:
            found.last.append(digest)
            found.wrong, found.counted_at = found.left(now) + 1, now
            found.next_at = max(found.next_at, now + GUESS_EVERY_S)
        self._of[who, job] = found
        while len(self._of) > _MOST_KEYS:
            self._of.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=16).digest()


class Waiting:
    """The number of calls of one kind that wait, of each address.

    Args:
        kind: as text, for several.
        of_one: how many of one address may wait.
        most: how many may wait in all.
    """

    def __init__(self, kind: str, of_one: int, most: int = MOST_WAITING) -> None:
        self._kind, self._of_one, self._most = kind, of_one, most
        self._of: Counter[str] = Counter()
        self._all = 0

    def enter(self, who: str) -> str:
        """Count one more call, or return why there may be no more of them."""
        if self._of[who] >= self._of_one:
            return f"{self._of_one} {self._kind} from {who} wait already"
        if self._all >= self._most:
            return f"{self._most} {self._kind} wait already"
        self._of[who] += 1
        self._all += 1
        return ""

    def leave(self, who: str) -> None:
        """Count one call less."""
        self._all -= 1
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]


@dataclass
class _Kind:
    line: str
    since: float
    level: int
    written: int = 1
    more: int = 0


class Repeats:
    """The log lines that are alike: the first ones of a kind are written, then how many more there were."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def admit(self, kind: str, line: str, now: float, level: int = logging.WARNING, first: int = 1) -> bool:
        """Return whether a line must be written now: the ``first`` ones are; others count until ``due``."""
        kind = kind if kind in self._kinds or len(self._kinds) < _MOST_KINDS else "others"
        found = self._kinds.get(kind)
        if found is None:
            self._kinds[kind] = _Kind(line, now, level)
            return True
        found.line, found.level = line, max(found.level, level)
        if found.written < first:
            found.written += 1
            return True
        found.more += 1
        return False

    def due(self, now: float) -> list[tuple[int, str]]:
        """Return level and line for each kind of which lines were left out for REPEAT_S; forget old kinds."""
        lines = []
        for kind, found in list(self._kinds.items()):
            if now - found.since < REPEAT_S:
                continue
            if found.more:
                more = f"; and {found.more - 1} more like it" if found.more > 1 else ""
                lines.append((found.level, found.line + more))
                self._kinds[kind] = _Kind(found.line, now, found.level)
            else:
                del self._kinds[kind]
        return lines

    @property
    def any(self) -> bool:
        """Return whether any kind is remembered."""
        return bool(self._kinds)
