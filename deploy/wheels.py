# SPDX-License-Identifier: Apache-2.0
"""Build wheels of Weir and of its switch with compiled C in them, for Linux.

    python deploy/wheels.py --machine x86_64 aarch64 --out wheels

compiles by zig (``pip install ziglang``) for glibc 2.17: manylinux2014. ``--host`` compiles for this machine
alone, by its own compiler and for its own glibc.
"""

import argparse
import base64
import contextlib
import csv
import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from softp4.dataplane import loop_bindings
from softp4.native import build, ring
from softp4.p4rt import updates
from softp4.program.loader import load_program
from softp4.program.types import Program
from softp4.runtime.compiler import load_switch_library, program_text, text_name
from weir.cli import COMMIT_FILE, commit_of
from weir.host_agent.collectives import bindings as collectives
from weir.host_agent.compression import bindings as compression
from weir.host_agent.flows import native as flows
from weir.host_agent.placement.partitioners import local_search
from weir.host_agent.transport import bindings as transport
from weir.host_agent.weights import native as weights
from weir.p4src import BUILD, manifest
from weir.simulator import fabric

ROOT: Final = Path(__file__).resolve().parents[1]
GLIBC: Final = "2.17"


def switch_parts() -> list[build.Parts]:
    """Return the C of the switch's wheel that is the same for all programs."""
    return _asked(ring.library, loop_bindings.library, updates.library)


def weir_parts() -> list[build.Parts]:
    """Return the C of Weir's wheel: that of its hosts, of the simulator, and its P4 programs'."""
    rooms = (transport, collectives, compression, flows, weights, local_search, fabric)
    loads = (partial(load_switch_library, program) for program in _programs())
    return _asked(*(room.library for room in rooms), *loads)


def weir_texts() -> dict[str, str]:
    """Return the C text of Weir's P4 programs by file name: to generate it takes seconds."""
    return {text_name(program): program_text(program) for program in _programs()}


def _programs() -> Iterator[Program]:
    return (load_program(BUILD / f"{name}.json") for name in manifest.PROGRAMS)


def _asked(*loads: Callable[[], object]) -> list[build.Parts]:
    """Return the parts of the libraries that functions would load."""
    with build.asked_for() as found:
        for load in loads:
            with contextlib.suppress(build.OnlyAskedError):
                load()
    return found


def pure_wheel(source: Path, folder: Path) -> Path:
    """Return the wheel that setuptools builds of a folder, without files of earlier builds."""
    shutil.rmtree(source / "build" / "lib", ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(folder), str(source)], check=True)
    (path,) = folder.glob("*.whl")
    return path


def with_compiled(
    wheel: Path,
    parts: list[build.Parts],
    texts: Mapping[str, str],
    machine: str,
    compiler: Callable[[str], list[str]],
    tag: str,
    out: Path,
) -> Path:
    """Add compiled libraries to a wheel.

    Args:
        wheel: A wheel of Python alone.
        parts: Of the libraries.
        texts: Other files that are put beside them, by name.
        machine: x86_64 or aarch64.
        compiler: Returns a C compiler's command with its flags for a level of processors.
        tag: Tag of the platform, such as manylinux2014_x86_64; several with dots between them.
        out: Folder of the new wheel.

    Returns:
        The new wheel.
    """
    package = "weir" if wheel.name.startswith("weir") else "softp4"
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as old:
        files = dict(_contents(old, tag))
        for one in parts:
            for level in build.LEVELS[machine]:
                library = build.make_packaged(one, level, compiler(level), Path(folder))
                files[f"{package}/{build.COMPILED}/{library.name}"] = library.read_bytes()
    files |= {f"{package}/{build.COMPILED}/{name}": text.encode() for name, text in texts.items()}
    if commit := commit_of(ROOT):
        files[f"{package}/{COMMIT_FILE}"] = commit.encode()
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    del files[record]
    target = out / wheel.name.replace("-none-any.whl", f"-none-{tag}.whl")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in files.items():
            new.writestr(name, content)
        new.writestr(record, _record(files, record))
    return target


def by_host(level: str) -> list[str]:
    """Return this machine's compiler."""
    return [*build.compiler(), f"-march={level}"]


def by_zig_for(machine: str) -> Callable[[str], list[str]]:
    """Return a function that returns zig's C compiler for a machine."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC}"]
    names = {"armv8-a": "generic"}
    return lambda level: [*command, f"-march={names.get(level, level.replace('-', '_'))}"]


def _contents(wheel: zipfile.ZipFile, tag: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of a wheel's files, as those of a wheel for a platform."""
    for name in wheel.namelist():
        content = wheel.read(name)
        if name.endswith(".dist-info/WHEEL"):
            lines = content.decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").splitlines()
            kept = [line for line in lines if line and not line.startswith("Tag: ")]
            content = "\n".join([*kept, *(f"Tag: py3-none-{each}" for each in tag.split(".")), ""]).encode()
        yield name, content


def _record(files: dict[str, bytes], record: str) -> str:
    """Return the table of a wheel's files with digests and sizes (PEP 376)."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        table.writerow((name, f"sha256={digest}", len(content)))
    table.writerow((record, "", ""))
    return text.getvalue()


def main() -> None:
    """Build both wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("wheels"), help="folder of the wheels")
    here = platform.machine()
    parser.add_argument(
        "--machine", nargs="+", choices=sorted(build.LEVELS), default=[here], help="machines to compile for"
    )
    parser.add_argument("--host", action="store_true", help="compile by this machine's compiler")
    options = parser.parse_args()
    if options.host:
        targets = [(here, by_host, f"linux_{here}")]
    else:
        tag = "manylinux_2_17_{0}.manylinux2014_{0}"
        targets = [(machine, by_zig_for(machine), tag.format(machine)) for machine in options.machine]
    options.out.mkdir(parents=True, exist_ok=True)
    for source, parts, texts in (
        (ROOT / "softswitch", switch_parts(), {}),
        (ROOT, weir_parts(), weir_texts()),
    ):
        with tempfile.TemporaryDirectory() as folder:
            wheel = pure_wheel(source, Path(folder))
            for target in targets:
                print(with_compiled(wheel, parts, texts, *target, options.out))


if __name__ == "__main__":
    main()
