# SPDX-License-Identifier: Apache-2.0
"""p4c's samples: which of them are tests of v1model programs, and what the compiler makes of them."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LONGEST = 120.0  # seconds that p4c may take


class NotCompiledError(Exception):
    """p4c refuses the program; the message is its first error."""


@dataclass(frozen=True)
class Case:
    """A program with an STF file beside it; ``name`` is the path in the folder of samples, without suffix."""

    name: str
    source: Path
    test: Path


@dataclass(frozen=True)
class Compiled:
    """What p4c made of a case. p4info: None where it is not at hand."""

    program: Path
    p4info: Path | None

    def json(self) -> Any:
        """Return the BMv2 JSON."""
        return json.loads(self.program.read_text())


def find(folder: Path) -> Iterator[Case]:
    """Yield the tests of v1model programs under a folder, in order of their names."""
    for test in sorted(folder.rglob("*.stf")):
        source = test.with_suffix(".p4")
        if source.exists() and "v1model.p4>" in source.read_text():
            yield Case(str(source.relative_to(folder).with_suffix("")), source, test)


def compile_case(case: Case, scratch: Path) -> Compiled:
    """Compile a case into a folder, which is made. Raises NotCompiledError."""
    scratch.mkdir(parents=True, exist_ok=True)
    program, p4info = scratch / "program.json", scratch / "program.p4info.txtpb"
    outputs = ["-o", str(program), "--p4runtime-files", str(p4info)]
    command = ["p4c-bm2-ss", "--std", "p4-16", *outputs, str(case.source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST)
    if done.returncode or not program.exists():
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise NotCompiledError(
            errors[0].replace(str(case.source), case.source.name) if errors else "no output"
        )
    return Compiled(program, p4info)
