# SPDX-License-Identifier: Apache-2.0
"""A plain ``pip install weir-ina`` can train; what else a command needs is named before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.commands import Command
from tests.harness.effort import effort

# An environment without the extras: their packages cannot be imported.
WITHOUT = """
import importlib.abc, importlib.util, sys
hidden = {"p4runtime_sh", "yaml", "sklearn", "matplotlib", "scapy"}
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else find(name, package)
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
for name in [name for name in sys.modules if name.split(".")[0] in hidden]:
    del sys.modules[name]
"""
MAIN = "from weir.cli import main; main()"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_forked(folder: Path, *arguments: object) -> tuple[int | None, str]:
    """Run ``weir`` in a process that has torch imported already; return its status and what it printed."""
    script = folder / "weir_without_extras.py"
    script.write_text(WITHOUT + MAIN)
    with Command(script, *arguments) as command:
        said = command.said()
    return command.returncode, said


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        (["compare"], "train"),
        (["pcap", "show", "x"], "train"),
        (["bench", "switch"], "train"),
    ],
)
def test_a_command_names_the_extras_it_needs(command: list[str], extras: str) -> None:
    done = run(MAIN, *command)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"needs additional packages: pip install 'weir-ina[{extras}]'")
    assert "Traceback" not in done.stderr


def test_a_model_names_the_extra_that_its_data_comes_with(tmp_path: Path) -> None:
    status, said = run_forked(tmp_path, "train", "--model", "cnn")
    assert status == 1
    assert said.startswith("weir: weir train --model cnn needs additional packages: ")
    assert "pip install 'weir-ina[train]'" in said and "gpt and lm" in said


@pytest.mark.parametrize(
    "command",
    [
        ["controller", "qos", "--format", "tc", "--topology-file", "{}", "eth0"],
        *effort([], [["controller", "run", "{}"], ["shell", "s1", "--topology-file", "{}"]]),
    ],
)
def test_only_a_topology_in_yaml_needs_pyyaml(command: list[str], tmp_path: Path) -> None:
    yaml, no_topology = tmp_path / "rack.yaml", tmp_path / "rack.json"
    yaml.write_text("switches: []\nhosts: []\n")
    no_topology.write_text("[]")
    status, said = run_forked(tmp_path, *(word.format(yaml) for word in command))
    assert status in (1, 2)
    words = f"{yaml} is YAML, but PyYAML is not installed. Run pip install 'weir-ina[controller]'"
    assert words in said
    assert "Traceback" not in said
    _, said = run_forked(tmp_path, *(word.format(no_topology) for word in command))
    assert f"{no_topology}: a topology is a mapping" in said, said


@pytest.mark.long
def test_training_and_the_overview_need_none() -> None:
    """By default ``tests/test_packaging.py`` does both where the extras are not installed."""
    done = run(f"import weir.torch; {MAIN}", "--help")
    assert done.returncode == 0, done.stderr
