# SPDX-License-Identifier: Apache-2.0
"""The programs that are compared: ours, Weir's, or any P4 source that p4c-bm2-ss compiles."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.cases import Case, compile_case
from tests.differential.steady import for_bmv2, for_soft, order_matters
from tests.harness.target import P4INFO, PROGRAM
from tests.programs import FOLDER

WEIR: Final = "weir"
# Programs of softswitch/tests/p4 that together have every construct.
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


@dataclass(frozen=True)
class Subject:
    """A program as both switches get it.

    Attributes:
        name: for people.
        json: its BMv2 JSON.
        soft, bmv2: files with the program as the switches get it.
        p4info: its P4Info.
    """

    name: str
    json: Any
    soft: Path
    bmv2: Path
    p4info: Path

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
    """Return one of `OURS` or `WEIR` as it is checked in, its files in ``scratch``.

    Without a P4Info it can be played, but no scenario can be made for it.
    """
    if name == WEIR:
        return _made(WEIR, PROGRAM, P4INFO, scratch / WEIR)
    return _made(name, FOLDER / f"{name}.json", p4info or Path(), scratch / name)


def compiled(source: Path | str, scratch: Path) -> Subject:
    """Return one of `OURS` or `WEIR` with its P4Info, or what p4c makes of a source.

    Raises:
        NotCompiledError: p4c refuses it.
    """
    if source == WEIR:
        return ours(WEIR, scratch)
    path = FOLDER / f"{source}.p4" if isinstance(source, str) else source
    made = compile_case(Case(path.stem, path, path), scratch / path.stem)
    if isinstance(source, str):
        return ours(source, scratch, made.p4info)
    return _made(path.stem, made.program, made.p4info, scratch / path.stem)


def _made(name: str, program: Path, p4info: Path, scratch: Path) -> Subject:
    scratch.mkdir(parents=True, exist_ok=True)
    tree = json.loads(program.read_text())
    soft, bmv2 = scratch / "soft.json", scratch / "bmv2.json"
    same = for_soft(tree) == tree
    soft.write_text(program.read_text() if same else json.dumps(for_soft(tree)))
    bmv2.write_text(json.dumps(for_bmv2(tree)))
    return Subject(name, tree, soft, bmv2, p4info)
