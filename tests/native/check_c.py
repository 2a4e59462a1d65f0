# SPDX-License-Identifier: Apache-2.0
"""Check all C of the repository: its formatting, and that no compiler has anything to warn about.

Run by ``make check``. It compiles every unit that is checked in and what the soft switch generates from
Weir's program and those of its tests, with the compiler and the dialect that users get. Every warning is an
error here, and never on a user's machine.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import clang_format  # type: ignore[import-untyped]

from softp4.codegen.module import generate
from softp4.native.build import DIALECT, compiler
from softp4.program.loader import load_program
from softp4.runtime.compiler import RUNTIME

_ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS: Final = ("softswitch", "host_agent", "simulator", "bench", "tests")
_STRICT: Final = ("-O0", "-Wall", "-Wextra", "-Werror")
_PROGRAMS: Final = (
    *(_ROOT / "p4src/build").glob("weir_*.json"),
    *(_ROOT / "softswitch/tests/p4").glob("*.json"),
)


def _files(suffix: str) -> list[Path]:
    return sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob(f"*{suffix}"))


def _run(*command: str) -> str:
    """Return everything a command says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_ROOT)
    return done.stdout + done.stderr if done.returncode else ""


def _format_faults() -> str:
    tool = clang_format.get_executable("clang-format")
    return _run(tool, "--dry-run", "-Werror", *map(str, [*_files(".h"), *_files(".c")]))


def _generated(folder: Path) -> Iterator[Path]:
    """Write what the soft switch makes of each program, as it runs and as it traces."""
    for source in _PROGRAMS:
        program = load_program(source)
        for trace in (False, True):
            path = folder / f"{source.stem}{'_traced' * trace}.c"
            path.write_text(generate(program, trace))
            yield path


def _warnings(unit: Path, folder: Path) -> str:
    # A unit's own folder first: two folders have a state.h.
    headers = dict.fromkeys([unit.parent, RUNTIME, *(header.parent for header in _files(".h"))])
    include = (f"-I{path}" for path in headers)
    target = folder / f"{unit.stem}-{abs(hash(unit))}.o"  # an object, because zig has no -fsyntax-only
    return _run(*compiler(), *DIALECT, *_STRICT, *include, "-c", str(unit), "-o", str(target))


def main() -> int:
    """Print every fault; return 1 if there is one."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        units = [*_files(".c"), *_generated(folder)]
        faults = [_format_faults(), *pool.map(lambda unit: _warnings(unit, folder), units)]
    sys.stderr.write("".join(faults))
    return int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
