# SPDX-License-Identifier: Apache-2.0
"""Digests: what a program's packets tell the control plane."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from weir.softswitch.bindings import Library
from weir.softswitch.codegen.digests import SAMPLE_HEAD, sample_fields, sample_words
from weir.softswitch.program.types import Program


@dataclass(frozen=True)
class Digest:
    """What one packet told: the digest's name and its fields in order (signed ones as bit patterns)."""

    name: str
    values: tuple[int, ...]


class DigestQueue:
    """The digests of a switch that wait to be fetched: distinct ones, up to 4096; what comes then is lost.

    Args:
        library: the compiled program.
        switch: gives the switch's address; raises when it is closed.
        program: what is running.
    """

    def __init__(self, library: Library, switch: Callable[[], int], program: Program) -> None:
        self._library = library
        self._switch = switch
        self._bytes = 8 * sample_words(program)
        self._names = {each.id: each.name for each in program.digests.values()}
        self._fields = {
            each.id: tuple((at, at + size) for _, at, size in sample_fields(program, each))
            for each in program.digests.values()
        }

    def take(self) -> list[Digest]:
        """Fetch all digests that wait, in order."""
        if not self._bytes:
            return []
        data = self._library.take_digests(self._switch(), self._bytes)
        return [self._digest(data[at : at + self._bytes]) for at in range(0, len(data), self._bytes)]

    def lost(self) -> int:
        """Return how many found no room since the switch was made."""
        return self._library.lost_digests(self._switch())

    def _digest(self, sample: bytes) -> Digest:
        number = int.from_bytes(sample[:SAMPLE_HEAD], sys.byteorder)
        values = (int.from_bytes(sample[begin:end], "big") for begin, end in self._fields[number])
        return Digest(self._names[number], tuple(values))
