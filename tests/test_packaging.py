# SPDX-License-Identifier: Apache-2.0
"""The wheel is one package, `weir`, with every source of native code and every P4 program in it."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from weir.cli import _COMMANDS

ROOT = Path(__file__).resolve().parent.parent
KINDS = {".py", ".pyi", ".c", ".h", ".lua", ".p4", ".json", ".txtpb", ".proto", ".binpb"}


def tracked(*places: str) -> list[Path]:
    """Return what git knows of under some places, links as such, relative to the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [Path(name) for name in listed if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that was built from a copy of what git tracks."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"  # setuptools leaves files beside what it builds
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(folder), str(copy)], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Return the names of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the environment's folder; its dependencies are this one's, in a folder of links."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    links = tmp_path_factory.mktemp("dependencies")
    for each in dependencies(wheel):
        for top in {file.parts[0] for file in each.files or () if file.parts[0] != ".."}:
            if not (links / top).exists():
                (links / top).symlink_to(str(each.locate_file(top)))
    (site_packages(folder) / "dependencies.pth").write_text(str(links))
    before = installed(folder)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    subprocess.run([*command, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    assert installed(folder) - before == {"weir", wheel.name.partition("-py3")[0] + ".dist-info"}
    return folder


def test_the_wheel_holds_every_source(names: set[str]) -> None:
    rooms = {link.name for link in (ROOT / "weir").iterdir() if link.is_symlink()}
    sources = {path for path in tracked("weir", *rooms) if path.suffix in KINDS}
    wanted = {str(path if path.parts[0] == "weir" else "weir" / path) for path in sources}
    assert wanted - names == set()


def test_the_wheel_adds_one_package(names: set[str]) -> None:
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"weir"}


class TestInstalled:
    """The wheel in a new environment, with what it depends on and none of its extras."""

    @staticmethod
    def run(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        line = [str(environment / "bin" / command[0]), *command[1:]]
        return subprocess.run(
            line, cwd=environment, env=variables, capture_output=True, text=True, check=False
        )

    def test_importing_weir_brings_neither_torch_nor_grpc(self, environment: Path) -> None:
        code = "import sys, weir; print(weir.__file__); print({'torch', 'grpc'} & set(sys.modules))"
        done = self.run(environment, "python", "-c", code)
        where, loaded = done.stdout.splitlines()
        assert Path(where).parent == site_packages(environment) / "weir"
        assert loaded == "set()"

    def test_the_overview_names_every_command(self, environment: Path) -> None:
        done = self.run(environment, "weir", "--help")
        assert done.returncode == 0, done.stderr
        assert set(_COMMANDS) <= set(done.stdout.split())

    @pytest.mark.parametrize("command", [name for name, entry in _COMMANDS.items() if entry.extras])
    def test_a_command_names_the_extras_it_lacks(self, environment: Path, wheel: Path, command: str) -> None:
        done = self.run(environment, "weir", command)
        extras = _COMMANDS[command].extras
        words = f"weir {command} needs more than a training environment"
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"weir: {words}: pip install 'weir-ina[{','.join(extras)}]'\n"
        assert set(extras) <= set(metadata(wheel).get_all("Provides-Extra", ()))

    @pytest.mark.parametrize("command", [name for name, entry in _COMMANDS.items() if not entry.extras])
    def test_other_commands_need_none(self, environment: Path, command: str) -> None:
        done = self.run(environment, "weir", command, "--help")
        assert done.returncode == 0, done.stderr

    def test_a_shell_without_p4runtime_shell_says_what_brings_it(self, environment: Path) -> None:
        done = self.run(environment, "weir", "shell", "--grpc", "127.0.0.1:1")
        assert done.returncode == 1
        assert "pip install" in done.stderr and "shell" in done.stderr and "Traceback" not in done.stderr


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def dependencies(wheel: Path) -> list[Distribution]:
    """Return what the wheel's distribution depends on without its extras, directly or not."""
    found: dict[str, Distribution] = {}
    wanted = metadata(wheel).get_all("Requires-Dist", ())
    while wanted:
        more: list[str] = []
        for requirement in map(Requirement, wanted):
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                more += found[requirement.name].requires or ()
        wanted = more
    return list(found.values())


def site_packages(environment: Path) -> Path:
    (path,) = environment.glob("lib/python3*/site-packages")
    return path


def installed(environment: Path) -> set[str]:
    return {path.name for path in site_packages(environment).iterdir()}
