# SPDX-License-Identifier: Apache-2.0
"""Unions, varbit fields, value sets and standard metadata: the same frames through BMv2 and the soft switch.

Frames are such that no field of an invalid header is read: BMv2 finds there what earlier packets left.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from softp4.state.entry import Exact
from softp4.switch import Switch
from tests import test_unions, test_varbits
from tests.harness.bmv2_stream import Bmv2DiedError, Bmv2Stream
from tests.programs import FOLDER, program, raw
from tests.state import test_value_sets

pytestmark = pytest.mark.bmv2

QUEUES = ("--priority-queues", "8")
COUNT = 400
BATCH = 64
TRIES = 8  # of one frame
COPIES = [(2, 1), (3, 2), (4, 3)]
Sets = Mapping[str, tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]


class Bmv2:
    """A BMv2 that is started again when it dies.

    With varbit fields it does now and then (a floating-point exception of its number library), whatever the
    frame: the same frames go through when they come one by one.
    """

    def __init__(self, name: str, sets: Sets, folder: Path) -> None:
        self._program = folder / "program.json"
        self._program.write_text(json.dumps(_with_constants(raw(name), sets)))
        self._info = FOLDER / f"{name}.p4info.txtpb"
        self._start()

    def _start(self) -> None:
        self._stream = Bmv2Stream(self._program, self._info, QUEUES)
        self._stream.control.set_group(1, COPIES)

    def process(self, frames: Sequence[bytes], tries: int = TRIES) -> list[list[tuple[int, bytes]]]:
        try:
            return self._stream.process([(1, each) for each in frames])
        except Bmv2DiedError:
            if len(frames) == 1 and tries == 1:
                raise
            self.close()
            self._start()
            if len(frames) == 1:
                return self.process(frames, tries - 1)
            half = len(frames) // 2
            return self.process(frames[:half]) + self.process(frames[half:])

    def close(self) -> None:
        self._stream.close()


def differing(name: str, frames: Sequence[bytes], sets: Sets, folder: Path) -> list[str]:
    """Return frames whose answers are not the same. `sets`: field widths and members of value sets."""
    found = []
    with Switch(program(name)) as soft, contextlib.closing(Bmv2(name, sets, folder)) as bmv2:
        soft.multicast_groups.set(1, COPIES)
        for value_set, (_, members) in sets.items():
            soft.value_set(value_set).set([tuple(map(Exact, member)) for member in members])
        for at in range(0, len(frames), BATCH):
            batch = frames[at : at + BATCH]
            for frame, theirs in zip(batch, bmv2.process(batch), strict=True):
                ours = soft.process(1, frame, now=10**9)
                if sorted(ours) != sorted(theirs):  # BMv2's egress threads race
                    found.append(f"{frame.hex()}: {ours} here, {theirs} in BMv2")
    return found


def _with_constants(root: Any, sets: Sets) -> Any:
    """Return the program with the members of its value sets as cases: BMv2's P4Runtime cannot write value
    sets.
    """
    for state in root["parsers"][0]["parse_states"]:
        state["transitions"] = [
            case
            for transition in state["transitions"]
            for case in (_cases(transition, sets) if transition["type"] == "parse_vset" else [transition])
        ]
    return root


def _cases(transition: Any, sets: Sets) -> list[Any]:
    widths, members = sets.get(transition["value"], ((), ()))
    texts = (
        "".join(f"{value:0{(bits + 7) // 8 * 2}x}" for bits, value in zip(widths, member, strict=True))
        for member in members
    )
    return [{**transition, "type": "hexstr", "value": f"0x{text}"} for text in texts]


def test_unions_and_run_time_elements(tmp_path: Path) -> None:
    assert differing("unions", test_unions.frames(COUNT), {}, tmp_path) == []


def test_varbit_fields(tmp_path: Path) -> None:
    assert differing("varbits", test_varbits.frames(COUNT), {}, tmp_path) == []


def test_value_sets_and_metadata(tmp_path: Path) -> None:
    frames = test_value_sets.frames(COUNT)
    assert differing("value_sets", frames, test_value_sets.SETS, tmp_path) == []
