# SPDX-License-Identifier: Apache-2.0
"""A plain ``pip install weir-ina`` can train; what else a command needs is named before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

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
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "extras"),
    [
        (["compare"], "train"),
        (["pcap", "show", "x"], "train"),
        (["bench", "switch"], "train"),
    ],
)
def test_a_command_names_the_extras_it_needs(command: list[str], extras: str) -> None:
    done = run("from weir.cli import main; main()", *command)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"needs additional packages: pip install 'weir-ina[{extras}]'")
    assert "Traceback" not in done.stderr


def test_a_model_names_the_extra_that_its_data_comes_with() -> None:
    done = run("from weir.cli import main; main()", "train", "--model", "cnn")
    assert done.returncode == 1
    assert done.stderr.startswith("weir: weir train --model cnn needs additional packages: ")
    assert "pip install 'weir-ina[train]'" in done.stderr and "gpt and lm" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["controller", "run", "{}"],
        ["controller", "qos", "--format", "tc", "--topology-file", "{}", "eth0"],
        ["shell", "s1", "--topology-file", "{}"],
    ],
)
def test_only_a_topology_in_yaml_needs_pyyaml(command: list[str], tmp_path: Path) -> None:
    yaml, no_topology = tmp_path / "rack.yaml", tmp_path / "rack.json"
    yaml.write_text("switches: []\nhosts: []\n")
    no_topology.write_text("[]")
    done = run("from weir.cli import main; main()", *(word.format(yaml) for word in command))
    assert done.returncode in (1, 2)
    words = f"{yaml} is YAML, but PyYAML is not installed. Run pip install 'weir-ina[controller]'"
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    done = run("from weir.cli import main; main()", *(word.format(no_topology) for word in command))
    assert f"{no_topology}: a topology is a mapping" in done.stderr, done.stderr


def test_training_and_the_overview_need_none() -> None:
    done = run("import weir.torch; from weir.cli import main; main()", "--help")
    assert done.returncode == 0, done.stderr
