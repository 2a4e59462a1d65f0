# SPDX-License-Identifier: Apache-2.0
"""Recordings of BMv2's answers to a scenario, in small files, for machines without BMv2."""

import hashlib
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.differential.play import Played
from tests.differential.rows import Default, Row
from tests.differential.scenario import Scenario
from tests.harness.keys import Key, Lpm, Optional, Range, Ternary

_KINDS: Final = {"lpm": Lpm, "ternary": Ternary, "range": Range, "optional": Optional}


@dataclass(frozen=True)
class Recording:
    """A scenario and its outcome; ``digest`` says of which program."""

    digest: str
    scenario: Scenario
    played: Played


def digest(program: Any) -> str:
    """Return a program's identity, wherever it was compiled."""
    return hashlib.sha256(json.dumps(program, sort_keys=True).encode()).hexdigest()


def save(path: Path, recording: Recording) -> None:
    """Write a recording."""
    scenario, played = recording.scenario, recording.played
    tree = {
        "digest": recording.digest,
        "rows": [
            [row.table, [_key_out(part) for part in row.key], row.action, list(row.args), row.priority]
            for row in scenario.rows
        ],
        "defaults": [[each.table, each.action, list(each.args)] for each in scenario.defaults],
        "groups": scenario.groups,
        "sessions": scenario.sessions,
        "frames": _frames_out(scenario.frames),
        "left": [_frames_out(left) for left in played.left],
        "counts": played.counts,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(json.dumps(tree, separators=(",", ":")).encode(), preset=9))


def load(path: Path) -> Recording:
    """Read a recording."""
    tree = json.loads(lzma.decompress(path.read_bytes()))
    scenario = Scenario(
        tuple(
            Row(table, tuple(map(_key_in, key)), action, tuple(args), priority)
            for table, key, action, args, priority in tree["rows"]
        ),
        tuple(Default(table, action, tuple(args)) for table, action, args in tree["defaults"]),
        _replicas_in(tree["groups"]),
        _replicas_in(tree["sessions"]),
        _frames_in(tree["frames"]),
    )
    counts = tuple((packets, size) for packets, size in tree["counts"])
    return Recording(tree["digest"], scenario, Played(tuple(map(_frames_in, tree["left"])), counts))


def _key_out(part: Key) -> Any:
    for name, kind in _KINDS.items():
        if isinstance(part, kind):
            return [name, *vars(part).values()]
    return part


def _key_in(part: Any) -> Key:
    if isinstance(part, int):
        return part
    name, *values = part
    made: Key = _KINDS[name](*values)
    return made


def _frames_out(frames: Any) -> list[Any]:
    return [[port, frame.hex()] for port, frame in frames]


def _frames_in(frames: Any) -> tuple[tuple[int, bytes], ...]:
    return tuple((port, bytes.fromhex(frame)) for port, frame in frames)


def _replicas_in(tree: Any) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    return tuple((number, tuple((port, rid) for port, rid in replicas)) for number, replicas in tree)
