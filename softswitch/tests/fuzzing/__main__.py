# SPDX-License-Identifier: Apache-2.0
"""Fuzzes for as long as it is told, and keeps what it finds."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tests.fuzzing.loader import FindingError, SpoiledPrograms, outcome
from tests.fuzzing.sanitized import run_worker, runtime
from tests.programs import FOLDER

_SPOILED: Final = 200  # programs between two that are compiled
_FRAMES: Final = 20_000
_FRAMES_OF_SPOILED: Final = 1_000


@dataclass
class Tally:
    """Count of what was done."""

    spoiled: int = 0
    survived: int = 0
    compiled: int = 0
    frames: int = 0
    findings: int = 0


class Fuzzing:
    """One run.

    Args:
        seed: the same one does the same, however long it gets.
        findings: folder for the programs that made something go wrong, and what was said.
        cache: folder for compiled code.
        programs: compiled programs, beside the tests' own.
    """

    def __init__(self, seed: int, findings: Path, cache: Path, programs: Sequence[Path] = ()) -> None:
        self.tally = Tally()
        self._rng = random.Random(seed)
        self._findings = findings
        self._cache = cache
        self._programs = [*sorted(FOLDER.glob("*.json")), *programs]
        self._spoiled = iter(SpoiledPrograms(self._programs, seed))

    def round(self, until: float) -> None:
        """Some of everything."""
        survivors = []
        for data in islice(self._spoiled, _SPOILED):
            if time.monotonic() > until:
                return
            self.tally.spoiled += 1
            try:
                done = outcome(data, trace=self._rng.random() < 0.3)
            except FindingError as error:
                self._keep(data, str(error))
                continue
            if done.text is not None:
                survivors.append(data)
        self.tally.survived += len(survivors)
        for data in self._rng.sample(survivors, min(2, len(survivors))):
            self._run_spoiled(data)
        self._run(self._rng.choice(self._programs))

    def _run_spoiled(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.json"
            path.write_bytes(data)
            report = run_worker(path, self._rng.getrandbits(32), _FRAMES_OF_SPOILED, Path(folder) / "cache")
        self.tally.compiled += 1
        self.tally.frames += _FRAMES_OF_SPOILED
        if report.bad:
            self._keep(data, report.output)

    def _run(self, program: Path) -> None:
        seed = self._rng.getrandbits(32)
        report = run_worker(program, seed, _FRAMES, self._cache, trace=True)
        self.tally.frames += _FRAMES
        if report.bad:
            self._keep(program.read_bytes(), f"{program.stem}, seed {seed}\n{report.output}")

    def _keep(self, data: bytes, words: str) -> None:
        self._findings.mkdir(parents=True, exist_ok=True)
        number = self.tally.findings
        self.tally.findings += 1
        (self._findings / f"{number}.json").write_bytes(data)
        (self._findings / f"{number}.txt").write_text(words)
        last = words.strip().rpartition("\n")[2]
        print(f"finding {number}: {last[:200]}", flush=True)


def main() -> int:
    """Return 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--findings", type=Path, default=Path("build/findings"), metavar="FOLDER")
    parser.add_argument(
        "programs", nargs="*", type=Path, metavar="PROGRAM.json", help="beside the tests' own"
    )
    options = parser.parse_args()
    if runtime() is None:
        print("the C compiler has no AddressSanitizer")
        return 2
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as cache:
        fuzzing = Fuzzing(options.seed, options.findings, Path(cache), options.programs)
        while time.monotonic() < until:
            fuzzing.round(until)
            print(f"seed {options.seed}: {fuzzing.tally}", flush=True)
    return 1 if fuzzing.tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
