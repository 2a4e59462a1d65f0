# SPDX-License-Identifier: Apache-2.0
"""The small P4 programs of these tests, and their compiled form, which lies beside them.

``python -m tests.programs`` compiles them again (p4c-bm2-ss on PATH).
"""

import functools
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from softp4.bench import lookups
from softp4.program.loader import load_program
from softp4.program.types import Program
from softp4.switch import Switch

FOLDER: Final = Path(__file__).parent / "p4"
BENCH: Final = lookups.P4
MEASURED: Final = ("acl", "flows", "router")
NAMES: Final = (
    "expressions",
    "parsing",
    "matching",
    "traffic",
    "state",
    "loops",
    "chains",
    "queues",
    "wide",
    "meters",
    "profiles",
    "kinds",
    "externs",
    "unions",
    "varbits",
    "value_sets",
    "shards",
    "records",
)

CONTROLLED: Final = ("types", "control", "unreached")
"""Programs for tests of the control plane alone."""
WITH_P4INFO: Final = ("matching", "meters", "profiles", "unions", "varbits", "value_sets", *CONTROLLED)
"""The programs that controllers are tested with."""


@functools.cache
def program(name: str) -> Program:
    """Return a compiled program, loaded."""
    return load_program(FOLDER / f"{name}.json")


def raw(name: str) -> Any:
    """Return a compiled program as parsed JSON, for a test to spoil."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def compiled(name: str, folder: Path = FOLDER) -> dict[str, str]:
    """Return what p4c makes of a program today, by file name: JSON without positions in the source, and
    P4Info.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target, info = Path(scratch) / "out.json", Path(scratch) / "out.txtpb"
        command = ["p4c-bm2-ss", "-o", str(target), "--p4runtime-files", str(info), f"{name}.p4"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        files = {f"{name}.json": compact(target.read_text())}
        if name in WITH_P4INFO or folder != FOLDER:
            files[f"{name}.p4info.txtpb"] = info.read_text()
        return files


def compact(program: str) -> str:
    """Return BMv2 JSON without positions in the source: a line for each action, table and so on."""
    bare = json.loads(program, object_hook=lambda node: {k: v for k, v in node.items() if k != "source_info"})
    parts = []
    for key, value in bare.items():
        lines = [
            json.dumps(each, separators=(",", ":")) for each in (value if isinstance(value, list) else [])
        ]
        body = "[\n" + ",\n".join(lines) + "\n]" if lines else json.dumps(value, separators=(",", ":"))
        parts.append(f"{json.dumps(key)}:{body}")
    return "{" + ",\n".join(parts) + "}\n"


def pack(fields: Sequence[tuple[int, int]]) -> bytes:
    """(value, width in bits) pairs to bytes, most significant bit first."""
    total = value = 0
    for number, bits in fields:
        assert 0 <= number < 1 << bits
        value = value << bits | number
        total += bits
    assert total % 8 == 0
    return value.to_bytes(total // 8, "big")


def unpack(data: bytes, widths: Sequence[int]) -> list[int]:
    """Return the inverse of `pack`, for fields of these widths; `data` must be exactly as long as they
    are.
    """
    left = sum(widths)
    assert left == 8 * len(data), (left, len(data))
    value = int.from_bytes(data, "big")
    result = []
    for bits in widths:
        left -= bits
        result.append(value >> left & (1 << bits) - 1)
    return result


def one(switch: Switch, frame: bytes, port: int = 5, now: int = 0) -> bytes:
    """Send a frame that must leave as exactly one."""
    ((_, answer),) = switch.process(port, frame, now)
    return answer


if __name__ == "__main__":
    for home, names in ((FOLDER, (*NAMES, *CONTROLLED)), (BENCH, MEASURED)):
        for each in names:
            for file, text in compiled(each, home).items():
                (home / file).write_text(text)
