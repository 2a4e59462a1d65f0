# SPDX-License-Identifier: Apache-2.0
"""Digests: what a program's packets tell the control plane."""

import sys
from dataclasses import dataclass

from softp4.codegen.digests import SAMPLE_HEAD, sample_fields, sample_words
from softp4.program.types import Program
from softp4.runtime.bindings import NativeSwitch, exclusive


@dataclass(frozen=True)
class Digest:
    """Message of one packet: the digest's name and its fields in order (signed ones as bit patterns)."""

    name: str
    values: tuple[int, ...]


class DigestQueue:
    """The digests of a switch that wait to be fetched: distinct ones, up to 4096; what comes then is lost.

    Thread-safe.
    """

    def __init__(self, native: NativeSwitch, program: Program) -> None:
        self._native = native
        self._bytes = 8 * sample_words(program)
        self._names = {each.id: each.name for each in program.digests.values()}
        self._fields = {
            each.id: tuple((at, at + size) for _, at, size in sample_fields(program, each))
            for each in program.digests.values()
        }

    @exclusive
    def take(self) -> list[Digest]:
        """Fetch all digests that wait, in order."""
        if not self._bytes:
            return []
        data = self._native.take_digests(self._bytes)
        return [self._digest(data[at : at + self._bytes]) for at in range(0, len(data), self._bytes)]

    @exclusive
    def lost(self) -> int:
        """Return how many found no room since the switch was made."""
        return self._native.lost_digests()

    def _digest(self, sample: bytes) -> Digest:
        number = int.from_bytes(sample[:SAMPLE_HEAD], sys.byteorder)
        values = (int.from_bytes(sample[begin:end], "big") for begin, end in self._fields[number])
        return Digest(self._names[number], tuple(values))
