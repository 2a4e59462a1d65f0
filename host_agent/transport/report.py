# SPDX-License-Identifier: Apache-2.0
"""Reports of reduces: packets, bytes, and where every lane that entered went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport.counters import TransportCounters
from weir.wire.definition import Op

FRAME_OVERHEAD: Final = 42
"""Bytes of Ethernet, IPv4 and UDP headers per packet: counted in every byte figure."""


class Verdict(IntEnum):
    """Fate of a payload that arrived (``enum weir_verdict``). From SHORT on: refused, no effect."""

    ACCEPTED = 0
    STALE = 1
    TRIMMED = 2
    REPEAT = 3
    DISAGREE = 4
    SHORT = 5
    BAD_VERSION = 6
    BAD_TYPE = 7
    BAD_FLAGS = 8
    BAD_CLASS = 9
    WRONG_JOB = 10
    WRONG_WORKER = 11
    BAD_SLOT = 12
    BAD_ROUND = 13
    BAD_OP = 14
    BAD_BLOCK_SIZE = 15
    BAD_GROUPS = 16
    BAD_LENGTH = 17
    BAD_COLUMN = 18
    BAD_NEXT = 19
    BAD_INCLUDED = 20
    BAD_AUDIENCE = 21
    NO_MEMORY = 22
    NOT_OURS = 23
    BAD_CHECK = 24

    @property
    def refused(self) -> bool:
        """Return whether the payload was useless: neither applied nor obeyed, nor a harmless duplicate."""
        return self >= Verdict.SHORT


_REFUSED_FROM: Final = int(Verdict.SHORT)
_NO_REFUSALS: Final[Mapping[Verdict, int]] = {}


def refusals(counts: Sequence[int]) -> Mapping[Verdict, int]:
    """Return how many payloads were refused, by verdict. counts: of payloads by every verdict's number."""
    if not any(counts[_REFUSED_FROM:]):
        return _NO_REFUSALS
    return {verdict: counts[verdict] for verdict in Verdict if verdict.refused and counts[verdict]}


@dataclass(frozen=True)
class Account:
    """A number of lanes and their exact sum, lanes read as signed 32-bit integers."""

    lanes: int = 0
    total: int = 0

    def __add__(self, other: "Account") -> "Account":
        return Account(self.lanes + other.lanes, self.total + other.total)


NOTHING: Final = Account()


@dataclass(frozen=True)
class ReturnedLanes:
    """Contributions that no result included, to be kept for the next step.

    blocks: uint32[n], indexes of blocks; block k is lanes k * size to (k + 1) * size - 1 of the vector.
    lanes: uint32[n, size], what this worker had contributed; zero beyond the vector's end.
    """

    blocks: npt.NDArray[np.uint32]
    lanes: npt.NDArray[np.uint32]

    def joined(self, parts: int) -> "ReturnedLanes":
        """Return the same in blocks that are ``parts`` of these long; zero where none of these is."""
        blocks, rows = np.unique(self.blocks // parts, return_inverse=True)
        lanes = np.zeros((blocks.size, parts, self.lanes.shape[1]), np.uint32)
        lanes[rows, self.blocks % parts] = self.lanes
        return ReturnedLanes(blocks, lanes.reshape(blocks.size, -1))


@cache
def none_returned(block: int) -> ReturnedLanes:
    """Return no contributions, in blocks of this many lanes."""
    return ReturnedLanes(np.empty(0, np.uint32), np.empty((0, block), np.uint32))


@dataclass(frozen=True, kw_only=True)
class ReduceReport(TransportCounters):
    """One reduce as one worker saw it: the transport's counters of it, and where the lanes went.

    Attributes:
        op, lanes, block: of the reduce; lanes in the vector, and in a packet block.
        window: slots that might be open at once, at the end.
        refused: payloads that were no valid result, by reason.
        entered: lanes of the non-zero blocks as the reduce began.
        included: those in a result that was applied.
        returned: those given back; ``given_back`` has them.
        applied: lanes of results written to the vector.
        missing, budgets: uint64, per account of the loss budget the lanes given back and how many might have
            been; empty when the reduce was lossless.
        seconds: as the caller measured.
    """

    op: Op
    lanes: int
    block: int
    window: int
    refused: Mapping[Verdict, int]
    entered: Account
    included: Account
    returned: Account
    applied: Account
    given_back: ReturnedLanes
    missing: npt.NDArray[np.uint64]
    budgets: npt.NDArray[np.uint64]
    seconds: float = 0.0

    @property
    def blocks_skipped(self) -> int:
        """Number of blocks of which this worker sent nothing, because they were zero here."""
        return self.blocks - self.blocks_sent

    @property
    def density(self) -> float:
        """Share of blocks that were sent; 0 of an empty vector."""
        return self.blocks_sent / self.blocks if self.blocks else 0.0
