# SPDX-License-Identifier: Apache-2.0
"""What `pip install .` gives is what the checkout has: no source of native code or P4 program is left out."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("wire", "native", "p4src", "softswitch", "controller", "host_agent", "weir", "simulator", "bench")
KINDS = {".py", ".pyi", ".c", ".h", ".lua", ".p4", ".json", ".txtpb", ".proto"}


def test_the_wheel_holds_every_source(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    wanted = {name for name in tracked if Path(name).suffix in KINDS and (ROOT / name).exists()}
    copy = tmp_path / "source"  # setuptools leaves files beside what it builds
    for name in (*wanted, "pyproject.toml", "README.md"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(tmp_path), str(copy)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert wanted - set(archive.namelist()) == set()
