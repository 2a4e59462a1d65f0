# SPDX-License-Identifier: Apache-2.0
"""The wheel is one package, `weir`, with every source of native code and every P4 program in it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KINDS = {".py", ".pyi", ".c", ".h", ".lua", ".p4", ".json", ".txtpb", ".proto", ".binpb"}


def tracked(*places: str) -> list[Path]:
    """Return what git knows of under some places, links as such, relative to the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [Path(name) for name in listed if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names in a wheel that was built from a copy of what git tracks."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"  # setuptools leaves files beside what it builds
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(folder), str(copy)], check=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_source(wheel: set[str]) -> None:
    rooms = {link.name for link in (ROOT / "weir").iterdir() if link.is_symlink()}
    sources = {path for path in tracked("weir", *rooms) if path.suffix in KINDS}
    wanted = {str(path if path.parts[0] == "weir" else "weir" / path) for path in sources}
    assert wanted - wheel == set()


def test_the_wheel_adds_one_package(wheel: set[str]) -> None:
    top = {name.partition("/")[0] for name in wheel}
    assert {name for name in top if not name.endswith(".dist-info")} == {"weir"}
