# SPDX-License-Identifier: Apache-2.0
"""Each wheel is one package, `weir` or `softp4`, with all of its C and P4 sources in it."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from weir.cli import _COMMANDS
from weir.p4src import manifest

ROOT = Path(__file__).resolve().parent.parent
KINDS = {".py", ".pyi", ".c", ".h", ".lua", ".p4", ".json", ".txtpb", ".proto", ".binpb"}


def tracked(*places: str) -> list[Path]:
    """Return what git knows of under some places, links as such, relative to the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [Path(name) for name in listed if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what git tracks: setuptools leaves files beside what it builds."""
    copy = tmp_path_factory.mktemp("source")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that was built from the copy."""
    return built(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def switch_wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the switch's wheel, which Weir's depends on."""
    return built(source / "softswitch", tmp_path_factory.mktemp("switch-wheel"))


def built(source: Path, folder: Path) -> Path:
    """Return the wheel of a folder, or of a source distribution, made in ``folder``."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(folder), str(source)], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Return the names of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, switch_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment with both wheels."""
    folder = with_dependencies(wheel, tmp_path_factory)
    install(switch_wheel, folder)
    before = installed(folder)
    install(wheel, folder)
    assert installed(folder) - before == {"weir", wheel.name.partition("-py3")[0] + ".dist-info"}
    return folder


@pytest.fixture(scope="module")
def editable(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment where both copies are installed with --editable."""
    made = tmp_path_factory.mktemp("editable-wheel")
    code = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    folder = with_dependencies(wheel, tmp_path_factory)
    for place in (source / "softswitch", source):
        subprocess.run([sys.executable, "-c", code, str(made)], cwd=place, check=True, capture_output=True)
    for each in sorted(made.glob("*.whl")):
        install(each, folder)
    return folder


def with_dependencies(wheel: Path, tmp_path_factory: pytest.TempPathFactory, extra: str = "") -> Path:
    """Return the folder of a new environment; a wheel's dependencies are this one's, in a folder of links."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    links = tmp_path_factory.mktemp("dependencies")
    for each in dependencies(wheel, extra):
        for top in {file.parts[0] for file in each.files or () if file.parts[0] != ".."}:
            if not (links / top).exists():
                (links / top).symlink_to(str(each.locate_file(top)))
    (site_packages(folder) / "dependencies.pth").write_text(str(links))
    return folder


def install(wheel: Path, folder: Path, *more: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*command, "--quiet", "--no-deps", "--no-index", *more, str(wheel)], check=True, env=alone)


def test_every_file_with_the_version_has_the_same() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for file, words in (
        ("pyproject.toml", f'"softp4=={version}"'),
        ("softswitch/pyproject.toml", f'version = "{version}"'),
        ("CITATION.cff", f"version: {version}"),
        ("CHANGELOG.md", f"## {version}"),
        ("softswitch/CHANGELOG.md", f"## {version}"),
        ("deploy/kubernetes/jobset.yaml", f"weir:{version}"),
        ("docs/start/install.md", f"weir:{version}"),
    ):
        assert words in (ROOT / file).read_text(encoding="utf-8"), file


def test_the_wheel_holds_every_source(names: set[str]) -> None:
    rooms = {link.name for link in (ROOT / "weir").iterdir() if link.is_symlink()}
    sources = {path for path in tracked("weir", *rooms) if path.suffix in KINDS}
    wanted = {str(path if path.parts[0] == "weir" else "weir" / path) for path in sources}
    assert wanted - names == set()


def test_the_wheel_adds_one_package(names: set[str]) -> None:
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"weir"}


def test_a_source_distribution_holds_what_the_wheel_does(
    source: Path, names: set[str], tmp_path: Path
) -> None:
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, check=True, capture_output=True)
    (distribution,) = tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(built(distribution, tmp_path)) as archive:
        assert set(archive.namelist()) == names


def test_processes_are_started_as_modules_of_the_package() -> None:
    """A name at the top of the repository is a module in a checkout, and in no installation."""
    rooms = "|".join(link.name for link in (ROOT / "weir").iterdir() if link.is_symlink())
    bare = re.compile(rf"""(?:\bspawn\(\s*"|"-m",\s*"|python3? -m )(?:{rooms})\b""")
    places = [
        path for path in tracked() if path.suffix in {".py", ".md", ".sh", ".service"} or not path.suffix
    ]
    wrong = [
        f"{path}: {found[0]!r}"
        for path in places
        if path.parts[0] not in {"CHANGELOG.md", "tests"} and (ROOT / path).is_file()
        for found in bare.finditer((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def bare(switch_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment with the switch's wheel alone."""
    folder = with_dependencies(switch_wheel, tmp_path_factory)
    install(switch_wheel, folder)
    return folder


def test_the_switchs_wheel_holds_every_source_of_one_package(switch_wheel: Path) -> None:
    with zipfile.ZipFile(switch_wheel) as archive:
        names = set(archive.namelist())
    sources = {path for path in tracked("softswitch/softp4") if path.suffix in KINDS}
    assert {str(path.relative_to("softswitch")) for path in sources} - names == set()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"softp4"}


def test_the_switch_alone_serves_any_program_from_any_folder(bare: Path, tmp_path: Path) -> None:
    place = site_packages(bare)
    found = [*place.iterdir(), *Path((place / "dependencies.pth").read_text()).iterdir()]
    assert not {"torch", "numpy", "pydantic", "weir"} & {path.name for path in found}
    shown = TestInstalled.run(bare, "softp4", "--help", folder=tmp_path)
    assert (shown.returncode, "--grpc-server-addr" in shown.stdout) == (0, True), shown.stderr
    refused = TestInstalled.run(bare, "softp4", "ctl", "list", folder=tmp_path)
    assert (refused.returncode, refused.stderr.count("pip install 'softp4[ctl]'")) == (1, 1), refused.stderr
    shutil.copy(ROOT / "examples" / "router" / "router.json", tmp_path)
    serve = ("softp4", "router.json", "--", "--grpc-server-addr", "127.0.0.1:0")
    with TestInstalled.start(bare, tmp_path, *serve) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.terminate()
        _, complained = process.communicate(timeout=60)
    assert re.fullmatch(r"P4Runtime on 127\.0\.0\.1:\d+, device 0\n", said), complained
    assert process.returncode == 0, complained


def test_the_switch_with_its_commands_runs_from_any_folder(
    switch_wheel: Path, tmp_path_factory: pytest.TempPathFactory, short_path: Path
) -> None:
    """The extra `ctl`, without Weir."""
    folder = with_dependencies(switch_wheel, tmp_path_factory, "ctl")
    install(switch_wheel, folder)
    assert "weir" not in installed(folder)
    shutil.copy(ROOT / "examples" / "router" / "router.json", short_path)
    _serves_and_is_controlled(folder, short_path, "softp4", "run")


def test_both_wheels_run_from_any_folder(environment: Path, short_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "router" / "router.json", short_path)
    where = "import softp4, weir; print(softp4.__file__, weir.__file__)"
    done = TestInstalled.run(environment, "python", "-c", where, folder=short_path)
    assert [Path(file).parent.parent for file in done.stdout.split()] == 2 * [site_packages(environment)]
    for command in (("softp4", "run"), ("weir", "switch")):
        _serves_and_is_controlled(environment, short_path, *command)


def _serves_and_is_controlled(environment: Path, folder: Path, *command: str) -> None:
    """Start a switch in a folder by a command, and ask it for its program by another."""
    control = folder / "control"
    options = ("--program", "router.json", "--grpc", f"unix:{folder}/grpc", "--control", str(control))
    with TestInstalled.start(environment, folder, *command, *options, "--ready-file", "ready") as process:
        while not (folder / "ready").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        info = TestInstalled.run(
            environment, "softp4", "ctl", "--socket", str(control), "--json", "info", folder=folder
        )
        process.terminate()
        _, complained = process.communicate(timeout=60)
    assert info.returncode == 0, info.stderr
    assert "ipv4_lpm" in info.stdout or "router" in info.stdout
    assert process.returncode == 0, complained


def test_weirs_wheel_finds_the_switchs(wheel: Path, switch_wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=False)
    wanted = next(each for each in metadata(wheel).get_all("Requires-Dist", ()) if each.startswith("softp4"))
    install(wheel, tmp_path / "environment", "--find-links", str(switch_wheel.parent), wanted)
    assert {"softp4", "weir"} <= installed(tmp_path / "environment")


class TestInstalled:
    """The wheel in a new environment, with what it depends on and none of its extras."""

    @staticmethod
    def start(environment: Path, folder: Path, *command: str) -> subprocess.Popen[str]:
        """Start one of the environment's programs in a folder."""
        dropped = ("PYTHONPATH", "WEIR_CONTROLLER", "WEIR_HOST", "WEIR_LINK")
        variables = {name: value for name, value in os.environ.items() if name not in dropped}
        line = [str(environment / "bin" / command[0]), *command[1:]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, cwd=folder, env=variables, text=True, **pipes)

    @classmethod
    def run(
        cls, environment: Path, *command: str, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        with cls.start(environment, folder or environment, *command) as process:
            said, complained = process.communicate(timeout=240)
        return subprocess.CompletedProcess(command, process.returncode, said, complained)

    @classmethod
    def torchrun(cls, environment: Path, script: Path, ranks: int) -> subprocess.CompletedProcess[str]:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        return cls.run(environment, "python", *launcher, str(script), folder=script.parent)

    @pytest.mark.long
    def test_the_script_in_the_readme_trains(self, environment: Path, tmp_path: Path) -> None:
        page = (ROOT / "README.md").read_text(encoding="utf-8")
        shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        script = next(block for block in shown if "init_process_group" in block)
        begin = "import torch\nmodel = torch.nn.Linear(8, 2)\n"
        end = (  # what it does before the first of its options
            "model(torch.full((4, 8), dist.get_rank() + 1.0)).sum().backward()\n"
            "print('gradient', model.module.weight.grad[0, 0].item(), flush=True)\n"
            "dist.destroy_process_group()\n"
        )
        path = tmp_path / "train.py"
        path.write_text(f"{begin}{script.partition('# optional')[0]}\n{end}")
        done = self.torchrun(environment, path, 2)
        assert done.returncode == 0, done.stderr
        # Of 4 samples each: (4 + 8) / 2. The ranks may print into one line.
        assert done.stdout.count("gradient") == done.stdout.count("6.0") == 2

    def test_it_trains_a_model(self, environment: Path, tmp_path: Path) -> None:
        short = ("--workers", "2", "--epochs", "1", "--max-steps", "2", "--no-reference")
        done = self.run(environment, "weir", "train", "--model", "bag", *short, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "no report.png without matplotlib: pip install 'weir-ina[train]'" in done.stdout
        (summary,) = tmp_path.glob("runs/*/summary.json")
        assert json.loads(summary.read_text())["status"] == "complete"

    @pytest.mark.long
    def test_it_keeps_a_model_in_a_server(self, environment: Path, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(
            "import torch, weir.torch\n"
            "model = torch.nn.Linear(4, 2)\n"
            "torch.nn.init.zeros_(model.weight)\n"
            "server = weir.torch.ParameterServer(model, torch.optim.SGD(model.parameters(), lr=0.5))\n"
            "model(torch.ones(1, 4)).sum().backward()\n"
            "server.step()\n"
            "print(model.weight[0, 0].item())\n"
        )
        meet = f"file://{tmp_path / 'store'}"
        start = f"import os; os.environ |= dict(RANK='0', WORLD_SIZE='1', WEIR_RENDEZVOUS={meet!r})\n"
        worker = ("python", "-c", f"{start}import runpy; runpy.run_path('train.py')")
        serve = ("weir", "server", "--rendezvous", meet)
        with (
            self.start(environment, tmp_path, *serve) as server,
            self.start(environment, tmp_path, *worker) as trains,
        ):
            said, complained = trains.communicate(timeout=120)
            _, served = server.communicate(timeout=120)
        assert (trains.returncode, server.returncode) == (0, 0), complained + served
        assert said.strip() == "-0.5"

    @pytest.mark.long
    def test_a_script_needs_no_import(self, environment: Path, tmp_path: Path) -> None:
        script = tmp_path / "sum.py"
        script.write_text(
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('weir')\n"
            "values = torch.full((3,), dist.get_rank() + 1.0)\n"
            "dist.all_reduce(values)\n"
            "print('sum', values[0].item(), flush=True)\n"
            "dist.destroy_process_group()\n"
        )
        done = self.torchrun(environment, script, 2)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("sum") == done.stdout.count("3.0") == 2

    @pytest.mark.parametrize("kind", ["environment", "editable"])
    def test_importing_torch_registers_the_backend_and_brings_nothing(
        self, kind: str, request: pytest.FixtureRequest
    ) -> None:
        code = (
            "import sys, torch, torch.distributed as dist\n"
            "print(dist.is_backend_available('weir'))\n"
            "print(sorted(one for one in sys.modules if one.partition('.')[0] in ('weir', 'grpc', 'google')))"
        )
        environment = request.getfixturevalue(kind)
        done = self.run(environment, "python", "-c", code)
        assert done.stdout.splitlines() == ["True", "['weir', 'weir.autoload']"], done.stderr
        if kind == "editable":
            return
        off = f"import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n{code}"
        done = self.run(environment, "python", "-c", off)
        assert done.stdout.splitlines() == ["False", "[]"], done.stderr

    def test_importing_torch_works_where_weir_does_not(self, environment: Path, tmp_path: Path) -> None:
        (tmp_path / "grpc.py").write_text("raise ImportError('broken')\n")
        code = (
            "import torch, torch.distributed as dist\n"
            "print(torch.ones(2).sum().item())\n"
            "try: dist.init_process_group('weir', store=dist.HashStore(), rank=0, world_size=1)\n"
            "except ImportError as error: print(error)"
        )
        done = self.run(environment, "python", "-c", code, folder=tmp_path)
        assert done.stdout.splitlines() == ["2.0", "broken"], done.stderr

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
        words = f"weir {command} needs additional packages"
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"weir: {words}: pip install 'weir-ina[{','.join(extras)}]'\n"
        assert set(extras) <= set(metadata(wheel).get_all("Provides-Extra", ()))

    def test_other_commands_need_none(self, environment: Path) -> None:
        """One process helps with all of them, as each would import torch."""
        code = (
            "import contextlib, sys\n"
            "from weir.cli import main\n"
            "for command in sys.argv[1:]:\n"
            "    sys.argv = ['weir', command, '--help']\n"
            "    with contextlib.suppress(SystemExit):\n"
            "        main()\n"
        )
        commands = [name for name, entry in _COMMANDS.items() if not entry.extras]
        done = self.run(environment, "python", "-c", code, *commands)
        assert done.returncode == 0, done.stderr
        assert [name for name in commands if f"weir {name} " not in done.stdout] == [], done.stderr

    def test_a_shell_without_p4runtime_shell_says_what_brings_it(self, environment: Path) -> None:
        done = self.run(environment, "weir", "shell", "--grpc", "127.0.0.1:1")
        assert done.returncode == 1
        assert "pip install" in done.stderr and "shell" in done.stderr and "Traceback" not in done.stderr


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def dependencies(wheel: Path, extra: str = "") -> list[Distribution]:
    """Return what the wheel's distribution depends on with one of its extras or none, directly or not."""
    found: dict[str, Distribution] = {}
    wanted = metadata(wheel).get_all("Requires-Dist", ())
    while wanted:
        more: list[str] = []
        for requirement in map(Requirement, wanted):
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if needed and requirement.name not in found and requirement.name != "softp4":
                found[requirement.name] = distribution(requirement.name)
                more += found[requirement.name].requires or ()
        wanted, extra = more, ""
    return list(found.values())


def site_packages(environment: Path) -> Path:
    (path,) = environment.glob("lib/python3*/site-packages")
    return path


def installed(environment: Path) -> set[str]:
    return {path.name for path in site_packages(environment).iterdir()}


def test_a_wheel_gets_every_library_and_every_program() -> None:
    code = (
        "import importlib.util, json, sys\n"
        "spec = importlib.util.spec_from_file_location('wheels', sys.argv[1])\n"
        "wheels = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(wheels)\n"
        "print(json.dumps([part.name for part in (*wheels.switch_parts(), *wheels.weir_parts())]))"
    )
    command = [sys.executable, "-c", code, str(ROOT / "deploy" / "wheels.py")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    rooms = [link.name for link in (ROOT / "weir").iterdir() if link.is_symlink()]
    loading = re.compile(r'\bload_library\(\s*"([\w-]+)"')
    wanted = {
        name
        for path in tracked("softswitch/softp4", "weir", *rooms)
        if path.suffix == ".py" and "bench" not in path.parts
        for name in loading.findall((ROOT / path).read_text(encoding="utf-8"))
    }
    assert set(found) == wanted
    assert found.count("softswitch") == len(manifest.PROGRAMS)


@pytest.mark.long  # zig compiles all C twice
def test_wheels_with_compiled_c_sum_where_there_is_no_compiler(
    source: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By zig where it is installed, as wheels are released, else by this machine's compiler."""
    by_zig = importlib.util.find_spec("ziglang") is not None
    if (ROOT / ".git").exists():  # the wheels keep the commit of the checkout that they are built in
        command = ["git", "rev-parse", "--absolute-git-dir"]
        git = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        (source / ".git").write_text(f"gitdir: {git}")
    wheels = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, str(source / "deploy/wheels.py"), "--out", str(wheels)]
    subprocess.run([*command, *([] if by_zig else ["--host"])], check=True, timeout=280)
    (weirs,), (switch,) = wheels.glob("weir_ina-*.whl"), wheels.glob("softp4-*.whl")
    assert ("manylinux2014" in weirs.name) == by_zig
    folder = with_dependencies(weirs, tmp_path_factory)
    for wheel in (switch, weirs):
        install(wheel, folder)
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    scripts = [tmp_path / "first_sum.py", tmp_path / "train.py"]
    for script, block in zip(scripts, re.findall(r"```python\n(.*?)```", page, re.DOTALL), strict=True):
        script.write_text(block)
    for name, value in (("PATH", str(folder / "bin")), ("SOFTP4_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    for name in ("CC", "SOFTP4_CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    code = "from softp4.native.build import compiler; compiler()"
    assert "NoCompilerError" in TestInstalled.run(folder, "python", "-c", code).stderr
    summed, trained = (TestInstalled.torchrun(folder, script, 2) for script in scripts)
    assert summed.returncode == 0 and summed.stdout.count("[3.0, 3.0, 3.0, 3.0]") == 2, summed.stderr
    assert trained.returncode == 0 and trained.stdout.count("loss") == 1, trained.stderr
    every = "from softp4.runtime.compiler import load_switch_library as load\n"
    every += (
        "from softp4.program.loader import load_program as program\nfrom weir.p4src import BUILD, manifest\n"
    )
    every += "for name in manifest.PROGRAMS: load(program(BUILD / f'{name}.json'))\n"
    done = TestInstalled.run(folder, "python", "-c", every)
    assert done.returncode == 0, done.stderr
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix in (".so", ".c")]
    shown = TestInstalled.run(folder, "weir", "--version").stdout
    assert not (ROOT / ".git").exists() or "commit" in shown
