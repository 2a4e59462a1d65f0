# SPDX-License-Identifier: Apache-2.0
"""The programs that are compared: ours, or any P4 source that p4c-bm2-ss compiles."""

import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from tests.conformance.cases import Case, compile_case
from tests.differential.rows import Replicas, Row
from tests.differential.steady import for_bmv2, for_soft, order_matters
from tests.programs import FOLDER

RECORDED: Final = Path(__file__).parent / "recorded"
# Programs of tests/p4 that together have every construct.
OURS: Final = (
    "expressions",
    "parsing",
    "matching",
    "traffic",
    "state",
    "loops",
    "chains",
    "meters",
    "externs",
    "unions",
    "kinds",
)


class Traffic(Protocol):
    """Entries that a program needs before it lets a frame through, and the frames that they are for."""

    rows: Sequence[Row]
    groups: Mapping[int, Replicas]

    def arrival(self) -> tuple[int, bytes]:
        """Return the next frame, and the port that it comes in by."""
        ...


@dataclass(frozen=True)
class Subject:
    """A program as both switches get it.

    Attributes:
        name: for people.
        json: its BMv2 JSON.
        soft, bmv2: files with the program as the switches get it.
        p4info: its P4Info.
        recording: file that says what BMv2 does with it.
        recorded_frames: length of such a recording.
        traffic: makes entries and frames for it, where chance alone gets no frame through.
    """

    name: str
    json: Any
    soft: Path
    bmv2: Path
    p4info: Path
    recording: Path
    recorded_frames: int = 300
    traffic: Callable[[random.Random], Traffic] | None = None

    @functools.cached_property
    def one_by_one(self) -> bool:
        """Return whether BMv2 must be done with a frame before the next one comes."""
        return order_matters(self.json)

    def allows(self, frame: bytes) -> bool:
        """Return whether BMv2 ever gets done with a frame."""
        return _AVOIDED.get(self.name, _nothing)(frame) is False


def _nothing(_: bytes) -> bool:
    return False


# Deadly for BMv2: to recirculate without end, stack indices beyond the end, lengths that are none.
_AVOIDED: Final[dict[str, Callable[[bytes], bool]]] = {
    "traffic": lambda frame: frame[:1] == b"\x0a",
    "unions": lambda frame: frame[:1] >= b"\x41" and frame[:1] < b"\x60" and frame[1:2] >= b"\x46",
    "varbits": lambda frame: len(frame) < 15 or int.from_bytes(frame[2:6], "big") > 0xFFFF,
}


def ours(name: str, scratch: Path, p4info: Path | None = None) -> Subject:
    """Return one of `OURS` as it is checked in, its files in ``scratch``.

    Without a P4Info it can be played, but no scenario can be made for it.
    """
    made = subject(FOLDER / f"{name}.json", p4info or Path(), scratch / name, RECORDED / f"{name}.json.xz")
    return replace(made, recorded_frames=150) if name == "loops" else made  # whose frames are long


def compiled(source: Path | str, scratch: Path) -> Subject:
    """Return one of `OURS` with its P4Info, or what p4c makes of a source.

    Raises:
        NotCompiledError: p4c refuses it.
    """
    path = FOLDER / f"{source}.p4" if isinstance(source, str) else source
    made = compile_case(Case(path.stem, path, path), scratch / path.stem)
    if isinstance(source, str):
        return ours(source, scratch, made.p4info)
    return subject(made.program, made.p4info, scratch / path.stem, RECORDED / f"{path.stem}.json.xz")


def subject(program: Path, p4info: Path, scratch: Path, recording: Path) -> Subject:
    """Return a compiled program as both switches get it, its files in ``scratch``, named as it is."""
    scratch.mkdir(parents=True, exist_ok=True)
    tree = json.loads(program.read_text())
    soft, bmv2 = scratch / "soft.json", scratch / "bmv2.json"
    same = for_soft(tree) == tree
    soft.write_text(program.read_text() if same else json.dumps(for_soft(tree)))
    bmv2.write_text(json.dumps(for_bmv2(tree)))
    return Subject(scratch.name, tree, soft, bmv2, p4info, recording)
