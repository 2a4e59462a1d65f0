# SPDX-License-Identifier: Apache-2.0
"""What a reduce did: packets, bytes, and where every lane that entered it went."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from wire.definition import Op

FRAME_OVERHEAD: Final = 42
"""Bytes of Ethernet, IPv4 and UDP headers per packet: counted in every byte figure."""


class Verdict(IntEnum):
    """What became of a payload that arrived (``enum weir_verdict``). From SHORT on: refused, no effect."""

    ACCEPTED = 0
    STALE = 1
    SHORT = 2
    BAD_VERSION = 3
    BAD_TYPE = 4
    BAD_FLAGS = 5
    WRONG_JOB = 6
    WRONG_WORKER = 7
    BAD_SLOT = 8
    BAD_ROUND = 9
    BAD_OP = 10
    BAD_BLOCK_SIZE = 11
    BAD_GROUPS = 12
    BAD_LENGTH = 13
    BAD_COLUMN = 14
    BAD_NEXT = 15
    BAD_INCLUDED = 16
    NO_MEMORY = 17
    NOT_OURS = 18

    @property
    def refused(self) -> bool:
        """Whether the payload was neither applied nor a harmless duplicate."""
        return self >= Verdict.SHORT


@dataclass(frozen=True)
class Account:
    """A number of lanes and their exact sum, lanes read as signed 32-bit integers."""

    lanes: int = 0
    total: int = 0

    def __add__(self, other: "Account") -> "Account":
        return Account(self.lanes + other.lanes, self.total + other.total)


NOTHING: Final = Account()


@dataclass(frozen=True)
class Returned:
    """Contributions that no result included, to be kept for the next step.

    blocks: uint32[n], indexes of blocks; block k is lanes k * size to (k + 1) * size - 1 of the vector.
    lanes: uint32[n, size], what this worker had contributed; zero beyond the vector's end.
    """

    blocks: npt.NDArray[np.uint32]
    lanes: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class ReduceReport:
    """One reduce as one worker saw it. Bytes count Ethernet, IPv4 and UDP headers.

    blocks: of the vector; blocks_sent: those of which this worker sent lanes (the non-zero ones, unless it
    fills).
    rounds: slot rounds completed. duplicates: results that came again, ignored. refused: payloads that
    were no valid result, by reason.
    entered: lanes of the non-zero blocks as the reduce began; included: those in a result that was
    applied; returned: those given back. applied: lanes of results written to the vector.
    """

    op: Op
    lanes: int
    block: int
    blocks: int
    blocks_sent: int
    rounds: int
    packets_up: int
    packets_down: int
    bytes_up: int
    bytes_down: int
    retransmissions: int
    duplicates: int
    refused: Mapping[Verdict, int]
    entered: Account
    included: Account
    returned: Account
    applied: Account
    given_back: Returned
    seconds: float = 0.0

    @property
    def blocks_skipped(self) -> int:
        """Blocks of which this worker sent nothing, because they were zero here."""
        return self.blocks - self.blocks_sent

    @property
    def density(self) -> float:
        """Share of blocks that were sent; 0 of an empty vector."""
        return self.blocks_sent / self.blocks if self.blocks else 0.0
