# SPDX-License-Identifier: Apache-2.0
"""Compile the P4 programs, or check that what is checked in is what they compile to.

``python p4src/build.py`` runs ``p4c-bm2-ss`` (https://github.com/p4lang/p4c) and writes, per program,
``build/<program>.json`` for BMv2 and the soft switch and ``build/<program>.p4info.txtpb`` for controllers,
and ``build/manifest.json`` with the SHA-256 of every source and output. The results are checked in, so that
nobody needs p4c to run Weir. With ``--check`` it compiles nothing: it exits 1 and names what is stale.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

P4SRC: Final = Path(__file__).resolve().parent
PROGRAMS: Final = ("weir_v1model",)
COMPILER: Final = "p4c-bm2-ss"
MANIFEST: Final = "manifest.json"
REBUILD: Final = "run `python p4src/build.py`"


class BuildError(Exception):
    """The compiler is missing, or it refused or warned about a program."""


def sources(p4src: Path) -> list[Path]:
    """Return every P4 file that the programs are made of, in a fixed order."""
    return sorted([*p4src.glob("*.p4"), *p4src.glob("include/*.p4")])


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def outputs(program: str) -> tuple[str, str]:
    """Return names of the two files that a program compiles to."""
    return f"{program}.json", f"{program}.p4info.txtpb"


def stale(p4src: Path = P4SRC) -> list[str]:
    """Return what differs from the manifest, one line each: sources changed since, outputs missing or
    edited.
    """
    build = p4src / "build"
    try:
        manifest = json.loads((build / MANIFEST).read_text())
        recorded: dict[str, dict[str, str]] = {key: dict(manifest[key]) for key in ("sources", "outputs")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"build/{MANIFEST} cannot be read: {error}"]
    found = {
        "sources": {str(path.relative_to(p4src)): sha256(path) for path in sources(p4src)},
        "outputs": {
            name: sha256(build / name)
            for program in PROGRAMS
            for name in outputs(program)
            if (build / name).is_file()
        },
    }
    return [line for kind in recorded for line in _differences(kind, recorded[kind], found[kind])]


def _differences(kind: str, recorded: dict[str, str], found: dict[str, str]) -> Iterator[str]:
    what = "source" if kind == "sources" else "output"
    for name in sorted(recorded.keys() | found.keys()):
        if name not in found:
            yield f"{what} {name} is gone"
        elif name not in recorded:
            yield f"{what} {name} is new"
        elif recorded[name] != found[name]:
            yield f"{what} {name} has changed"


def compile_all(target: Path, p4src: Path = P4SRC) -> None:
    """Compile every program into the folder `target` and write the manifest there.

    Raises BuildError, with the compiler's own words, when it is missing, fails or warns.
    """
    if shutil.which(COMPILER) is None:
        raise BuildError(f"{COMPILER} is not on PATH: install p4c, or use the checked-in p4src/build")
    target.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        _compile(program, target, p4src)
    manifest = {
        "p4c": _compiler_version(),
        "sources": {str(path.relative_to(p4src)): sha256(path) for path in sources(p4src)},
        "outputs": {name: sha256(target / name) for program in PROGRAMS for name in outputs(program)},
    }
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _compile(program: str, target: Path, p4src: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        raw, info = (Path(scratch) / name for name in outputs(program))
        # Run inside p4src, so that no path of this machine gets into the output.
        command = [COMPILER, "--p4runtime-files", str(info), "-o", str(raw), f"{program}.p4"]
        done = subprocess.run(command, cwd=p4src, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr.strip():
            raise BuildError(f"{program}.p4: {COMPILER} says:\n{done.stderr or done.stdout}")
        (target / info.name).write_bytes(info.read_bytes())
        (target / raw.name).write_text(compact(json.loads(raw.read_text())))


def compact(program: dict[str, Any]) -> str:
    """BMv2 JSON without source positions and white space, each action, table … on a line of its own."""
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
    """Version and commit; not the kind of build, which does not change what comes out."""
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    found = re.search(r"Version\s+(\S+)(?:\s+\(SHA:\s*([0-9a-f]+))?", said)
    return " ".join(part for part in found.groups() if part) if found else said.strip()


def main() -> None:
    """Command line: compile, or ``--check``."""
    parser = argparse.ArgumentParser(description="Compile the P4 programs into p4src/build.")
    parser.add_argument("--check", action="store_true", help="exit 1 when the build is stale")
    if parser.parse_args().check:
        if lines := stale():
            sys.exit(f"p4src/build is stale, {REBUILD}:\n" + "\n".join(f"  {line}" for line in lines))
        return
    try:
        compile_all(P4SRC / "build")
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
