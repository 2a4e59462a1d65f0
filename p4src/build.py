# SPDX-License-Identifier: Apache-2.0
"""Compile the P4 programs, or check that what is checked in is what they compile to.

``python p4src/build.py`` runs ``p4c-bm2-ss`` (https://github.com/p4lang/p4c) and writes, per program,
``build/<program>.json`` for BMv2 and the soft switch and ``build/<program>.p4info.txtpb`` for controllers,
and ``build/manifest.json`` with the SHA-256 of every source and output. The results are checked in, so that
nobody needs p4c to run Weir. With ``--check`` it compiles nothing: it exits 1 and names what is stale.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from weir.p4src.manifest import PROGRAMS, SOURCE, outputs, stale, write_manifest

P4SRC: Final = Path(__file__).resolve().parent
COMPILER: Final = "p4c-bm2-ss"
REBUILD: Final = "run `python p4src/build.py`"


class BuildError(Exception):
    """The compiler is missing, or it refused or warned about a program."""


def compile_all(target: Path, p4src: Path = P4SRC) -> None:
    """Compile every program into the folder ``target`` and write the manifest there.

    Raises:
        BuildError: the compiler is missing, fails or warns; with its own words.
    """
    if shutil.which(COMPILER) is None:
        raise BuildError(f"{COMPILER} is not on PATH: install p4c, or use the checked-in p4src/build")
    target.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        _compile(program, target, p4src)
    write_manifest(target, p4src, _compiler_version())


def _compile(program: str, target: Path, p4src: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        raw, info = (Path(scratch) / name for name in outputs(program))
        # Run inside p4src, so that no path of this machine gets into the output.
        command = [COMPILER, *PROGRAMS[program], "--p4runtime-files", str(info), "-o", str(raw), SOURCE]
        done = subprocess.run(command, cwd=p4src, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr.strip():
            raise BuildError(f"{program}: {COMPILER} says:\n{done.stderr or done.stdout}")
        (target / info.name).write_bytes(info.read_bytes())
        (target / raw.name).write_text(compact(json.loads(raw.read_text())))


def compact(program: dict[str, Any]) -> str:
    """Return BMv2 JSON without source positions and white space: a line for each action, table and so on."""
    parts = []
    for key, value in _without_positions(program).items():
        if isinstance(value, list) and value:
            body = "[\n" + ",\n".join(_dense(element) for element in value) + "\n]"
        else:
            body = _dense(value)
        parts.append(f"{json.dumps(key)}:{body}")
    return "{" + ",\n".join(parts) + "}\n"


def _dense(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _without_positions(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_positions(v) for k, v in value.items() if k != "source_info"}
    if isinstance(value, list):
        return [_without_positions(v) for v in value]
    return value


def _compiler_version() -> str:
    """Return version and commit, without the kind of build, which does not change what comes out."""
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    found = re.search(r"Version\s+(\S+)(?:\s+\(SHA:\s*([0-9a-f]+))?", said)
    return " ".join(part for part in found.groups() if part) if found else said.strip()


def main() -> None:
    """Compile, or check with ``--check``: the command line."""
    parser = argparse.ArgumentParser(description="Compile the P4 programs into p4src/build.")
    parser.add_argument("--check", action="store_true", help="exit 1 when the build is stale")
    if parser.parse_args().check:
        if lines := stale(P4SRC / "build"):
            sys.exit(f"p4src/build is stale, {REBUILD}:\n" + "\n".join(f"  {line}" for line in lines))
        return
    try:
        compile_all(P4SRC / "build")
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
