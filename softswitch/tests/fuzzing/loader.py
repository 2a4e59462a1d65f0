# SPDX-License-Identifier: Apache-2.0
"""Fuzzing of the loader with spoiled programs: each is refused in words or becomes C, and soon."""

import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from softp4.codegen.module import generate
from softp4.program.errors import ProgramError
from softp4.program.loader import load_program
from tests.fuzzing.mutation import Mutator

TIMEOUT: Final = 20.0  # seconds for one program; the largest takes one
LONGEST: Final = 30_000_000  # characters of C text


class FindingError(AssertionError):
    """Something that must not happen did."""


@dataclass(frozen=True)
class Outcome:
    """A survivor has C text; what is refused has the message."""

    data: bytes
    text: str | None
    refusal: str | None


def outcome(data: bytes, *, trace: bool = False) -> Outcome:
    """Load and generates. FindingError: something other than a ProgramError, or nothing for long."""
    try:
        with _limited(TIMEOUT):
            text = generate(load_program(data), trace)
    except ProgramError as error:
        if not str(error):
            raise FindingError("refused without a word") from error
        return Outcome(data, None, str(error))
    except Exception as error:
        raise FindingError(f"{type(error).__name__}: {error}") from error
    if len(text) > LONGEST:
        raise FindingError(f"{len(text)} characters of C text")
    return Outcome(data, text, None)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Limit the time with an alarm; for the main thread only."""

    def ring(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _deep() -> Iterator[None]:
    """More recursion than the loader has: what is too deep for it must be made first."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class SpoiledPrograms:
    """An endless supply of spoiled programs, from a seed."""

    def __init__(self, sources: list[Path], seed: int) -> None:
        self._rng = random.Random(seed)
        self._texts = [source.read_bytes() for source in sources]
        self._weights = [1 / len(text) for text in self._texts]  # large ones take long
        self._mutator = Mutator([json.loads(text) for text in self._texts], self._rng)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            [number] = self._rng.choices(range(len(self._texts)), self._weights)
            if self._rng.random() < 0.1:
                yield self._mutator.spoiled_text(self._texts[number])
            else:
                with _deep():
                    root = json.loads(self._texts[number])
                    self._mutator.spoil(root)
                    text = json.dumps(root).encode()
                yield text
