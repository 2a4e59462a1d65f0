# SPDX-License-Identifier: Apache-2.0
"""Wide values and externs on a running BMv2 and on the soft switch: the same frames, the same answers."""

import random
import subprocess
from pathlib import Path

import pytest

from softp4.program.loader import load_program
from softp4.state.entry import Entry, Exact
from softp4.state.entry import Lpm as SoftLpm
from softp4.state.entry import Ternary as SoftTernary
from softp4.switch import Switch
from tests import test_externs as externs
from tests.harness.bmv2_stream import Bmv2Stream
from tests.harness.keys import Lpm, Ternary
from tests.programs import FOLDER, pack
from tests.test_wide import OPERANDS, PADDING

pytestmark = [pytest.mark.bmv2, pytest.mark.p4c]

Sent = list[list[tuple[int, bytes]]]


def compiled(name: str, folder: Path) -> tuple[Path, Path]:
    """Return a program's JSON and P4Info, compiled now."""
    made = folder / f"{name}.json", folder / f"{name}.p4info.txtpb"
    files = ["-o", str(made[0]), "--p4runtime-files", str(made[1])]
    subprocess.run(["p4c-bm2-ss", *files, f"{name}.p4"], cwd=FOLDER, check=True, capture_output=True)
    return made


def on_soft_switch(switch: Switch, frames: list[bytes]) -> Sent:
    return [switch.process(1, frame, 0) for frame in frames]


def on_bmv2(switch: Bmv2Stream, frames: list[bytes]) -> Sent:
    """Return a few frames at a time: its queues hold 64."""
    batches = (frames[at : at + 20] for at in range(0, len(frames), 20))
    return [sent for batch in batches for sent in switch.process([(1, frame) for frame in batch])]


def operands(source: random.Random) -> bytes:
    values = []
    for bits in OPERANDS:
        top = (1 << bits) - 1
        edges = [0, 1, top, top >> 1, (top >> 1) + 1]
        values.append(source.choice([*edges, *(source.getrandbits(bits) for _ in range(5))]))
    return pack(list(zip(values, OPERANDS, strict=True))) + PADDING


def test_operators(tmp_path: Path) -> None:
    program, info = compiled("wide", tmp_path)
    source = random.Random(5)
    frames = [operands(source) for _ in range(300)]
    with Bmv2Stream(program, info) as bmv2, Switch(load_program(program)) as soft:
        assert on_soft_switch(soft, frames) == on_bmv2(bmv2, frames)


def test_externs(tmp_path: Path) -> None:
    program, info = compiled("externs", tmp_path)
    source = random.Random(6)
    value = source.getrandbits(256)
    prefix = value & (1 << 160) - (1 << 80)
    with Bmv2Stream(program, info) as bmv2, Switch(load_program(program)) as soft:
        bmv2.control.insert("In.exact_", (value, 3), "In.answer", (value >> 1,), 0)
        soft.table("In.exact_").insert(Entry((Exact(value), Exact(3)), "In.answer", (value >> 1,)))
        bmv2.control.insert("In.lpm_", (Lpm(prefix % (1 << 160), 80),), "In.answer", (7,), 0)
        soft.table("In.lpm_").insert(Entry((SoftLpm(prefix % (1 << 160), 80),), "In.answer", (7,)))
        key = value & 0xFF << 200, 0xFF << 200
        bmv2.control.insert("In.ternary_", (Ternary(*key), Ternary(0, 1)), "In.add", (value >> 120, 9), 4)
        soft.table("In.ternary_").insert(
            Entry((SoftTernary(*key), SoftTernary(0, 1)), "In.add", (value >> 120, 9), priority=4),
        )
        frames = sent(source, value)
        theirs = on_bmv2(bmv2, frames)
        for frame, mine, their in zip(frames, on_soft_switch(soft, frames), theirs, strict=True):
            assert mine == their, frame.hex()


def sent(source: random.Random, value: int) -> list[bytes]:
    """Orders of all kinds but those that stop BMv2 (an assertion) or that it answers with its own dice."""
    frames = []
    for what in (externs.WRITE, externs.READ, externs.HASH, externs.CUSTOM, externs.CUSTOM32, externs.LOG):
        frames += [externs.order(what, index, source.getrandbits(256)) for index in (0, 3, 1, 3)]
    for what in (externs.EXACT, externs.LPM, externs.TERNARY):
        frames += [externs.order(what, index, value ^ flip) for index in (2, 3) for flip in (0, 1, 1 << 205)]
    for length in (14, 40, 69, 80, 200):
        frames.append(externs.order(externs.TRUNCATE, length) + bytes(range(60)))
    for wide in (1 << 256 | 2, 1 << 256, 1 << 271, 1 << 271 | 1):
        for index in (0, 1):
            frames += [
                externs.order(externs.EXTRA, index) + externs.extra(wide, total) + externs.extra(3) + tail
                for tail in (b"", b"odd")
                for total in (None, 0x1234)
            ]
    for what in (externs.EQUAL, externs.TWO):
        frames += [externs.order(what) + externs.extra(5) + externs.extra(n) + b"tail" for n in (5, 6)]
    frames += [externs.order(externs.LOOP, turns, source.getrandbits(256)) for turns in (0, 1, 20)]
    frames.append(externs.order(externs.AHEAD) + bytes(range(32)))
    return frames
