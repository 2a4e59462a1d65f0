# SPDX-License-Identifier: Apache-2.0
"""Unions, varbit fields, value sets and standard metadata: the same frames through BMv2 and the soft switch.

Frames are such that no field of an invalid header is read: BMv2 finds there what earlier packets left.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from softswitch.entry import Exact
from softswitch.switch import Switch
from tests.harness.bmv2_stream import Bmv2Stream
from tests.softswitch import test_unions, test_value_sets, test_varbits
from tests.softswitch.programs import FOLDER, program, raw

pytestmark = pytest.mark.bmv2

COUNT = 1000
BATCH = 50
COPIES = [(2, 1), (3, 2), (4, 3)]
Sets = Mapping[str, tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]


def differing(name: str, frames: Sequence[bytes], sets: Sets, folder: Path) -> list[str]:
    """Frames whose answers are not the same. `sets`: field widths and members of value sets."""
    target = folder / "program.json"
    target.write_text(json.dumps(_with_constants(raw(name), sets)))
    info = FOLDER / f"{name}.p4info.txtpb"
    found = []
    with Switch(program(name)) as soft, Bmv2Stream(target, info, ["--priority-queues", "8"]) as bmv2:
        soft.set_multicast_group(1, COPIES)
        bmv2.control.set_group(1, COPIES)
        for value_set, (_, members) in sets.items():
            soft.set_value_set(value_set, [tuple(map(Exact, member)) for member in members])
        for at in range(0, len(frames), BATCH):
            batch = frames[at : at + BATCH]
            for frame, theirs in zip(batch, bmv2.process([(1, each) for each in batch]), strict=True):
                ours = soft.process(1, frame, now=10**9)
                if sorted(ours) != sorted(theirs):  # BMv2's egress threads race
                    found.append(f"{frame.hex()}: {ours} here, {theirs} in BMv2")
    return found


def _with_constants(root: Any, sets: Sets) -> Any:
    """The program with the members of its value sets as cases: BMv2's P4Runtime cannot write value sets."""
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


def test_unions(tmp_path: Path) -> None:
    assert differing("unions", test_unions.frames(COUNT), {}, tmp_path) == []


def test_varbits(tmp_path: Path) -> None:
    assert differing("varbits", test_varbits.frames(COUNT), {}, tmp_path) == []


def test_value_sets_and_metadata(tmp_path: Path) -> None:
    frames = test_value_sets.frames(COUNT)
    assert differing("value_sets", frames, test_value_sets.SETS, tmp_path) == []
