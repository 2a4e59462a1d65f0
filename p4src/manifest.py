# SPDX-License-Identifier: Apache-2.0
"""The manifest beside the compiled programs: hashes of all sources and outputs, and what differs from it."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "weir_v1model": (),
    "weir_v1model_wide": ("-DWIDE",),
    "weir_v1model_hub": ("-DSLOTS=65536",),
}
"""What is compiled, of ``weir_v1model.p4``: the name of what comes out, and the preprocessor's options."""

SOURCE: Final = "weir_v1model.p4"
MANIFEST: Final = "manifest.json"


def sources(p4src: Path) -> dict[str, Path]:
    """Return every P4 file that the programs are made of, by its path below ``p4src``, in a fixed order."""
    found = sorted([p4src / SOURCE, *p4src.glob("shared/*.p4"), *p4src.glob("v1model/*.p4")])
    found = [path for path in found if path.is_file()]
    return {path.relative_to(p4src).as_posix(): path for path in found}


def outputs(program: str) -> tuple[str, str]:
    """Return the names of the two files that a program compiles to: BMv2 JSON and P4Info."""
    return f"{program}.json", f"{program}.p4info.txtpb"


def write_manifest(build: Path, p4src: Path, compiler: str) -> None:
    """Record the sources in ``p4src``, what they compiled to in ``build``, and the compiler's version."""
    manifest = {
        "p4c": compiler,
        "sources": hashes(sources(p4src)),
        "outputs": hashes({name: build / name for program in PROGRAMS for name in outputs(program)}),
    }
    (build / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def stale(build: Path, programs: Iterable[str] = PROGRAMS) -> list[str]:
    """Return what differs from the manifest, one line each: sources changed since, outputs missing or edited.

    The sources are looked for where a checkout has them, in the folder above ``build``. Where there are none,
    there is nothing to disagree with; outputs with neither sources nor a manifest are taken as they are.
    """
    path, there = build / MANIFEST, sources(build.parent)
    if not there and not path.exists():
        return []
    try:
        manifest = json.loads(path.read_text())
        recorded: dict[str, dict[str, str]] = {key: dict(manifest[key]) for key in ("sources", "outputs")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{path} cannot be read: {error!r}"]
    names = [name for program in programs for name in outputs(program)]
    made = hashes({name: build / name for name in names if (build / name).is_file()})
    noted = {name: digest for name, digest in recorded["outputs"].items() if name in names}
    lines = list(differences("output", noted, made))
    return [*differences("source", recorded["sources"], hashes(there)), *lines] if there else lines


def hashes(files: dict[str, Path]) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def differences(what: str, recorded: dict[str, str], found: dict[str, str]) -> Iterator[str]:
    for name in sorted(recorded.keys() | found.keys()):
        if name not in found:
            yield f"{what} {name} is gone"
        elif name not in recorded:
            yield f"{what} {name} is new"
        elif recorded[name] != found[name]:
            yield f"{what} {name} has changed"
