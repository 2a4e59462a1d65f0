# SPDX-License-Identifier: Apache-2.0
"""A plain ``pip install weir-ina`` can train; what else a command needs is named before anything starts."""

import subprocess
import sys

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
        (["train"], "controller,train"),
        (["controller", "--topology", "x"], "controller"),
        (["pcap", "x"], "train"),
        (["bench", "switch"], "controller,train"),
    ],
)
def test_a_command_names_the_extras_it_needs(command: list[str], extras: str) -> None:
    done = run("from weir.cli import main; main()", *command)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        f"needs more than a training environment: pip install 'weir-ina[{extras}]'"
    )
    assert "Traceback" not in done.stderr


def test_a_local_cluster_names_them_too() -> None:
    done = run("import weir; weir.LocalCluster(2).start()")
    assert "a local cluster needs more than a training environment: pip install 'weir-ina[controller]'" in (
        done.stderr
    )


def test_training_and_the_overview_need_none() -> None:
    done = run("import weir.torch; from weir.cli import main; main()", "--help")
    assert done.returncode == 0, done.stderr
