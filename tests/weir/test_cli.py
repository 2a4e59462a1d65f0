# SPDX-License-Identifier: Apache-2.0
"""The ``weir`` command: quick to say what it can do, clear about what it was given."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.cli import app
from weir.train.config import TrainConfig


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_help_lists_every_command() -> None:
    status, output = run("--help")
    assert status == 0
    for name in ("train", "compare", "methods", "switch", "controller", "status", "pcap", "bench"):
        assert f" {name} " in output


@pytest.mark.parametrize(
    "command", ["train", "compare", "methods", "switch", "controller", "status", "pcap", "bench"]
)
def test_every_command_has_its_own_help(command: str) -> None:
    status, output = run(command, "--help")
    assert status == 0 and f"weir {command}" in output.replace("root", "weir")


@pytest.mark.parametrize(
    "code", ["import weir", "from weir.cli import app", "import weir.train.cli", "import weir.compare.cli"]
)
def test_nothing_heavy_is_imported_to_look_at_the_command_line(code: str) -> None:
    heavy = "{'torch', 'numpy', 'grpc', 'scapy', 'matplotlib', 'sklearn'}"
    script = f"{code}\nimport sys\nprint(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_command_is_named() -> None:
    status, output = run("trian")
    assert status == 2 and "trian" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--density", "0"], "--density: input should be greater than 0, not 0.0"),
        (["--workers", "33"], "--workers: input should be less than or equal to 32, not 33"),
        (["--model", "lm", "--data", "digits"], "model 'lm' trains on 'stdlib', not on 'digits'"),
    ],
)
def test_bad_training_options_are_refused_before_anything_starts(arguments: list[str], message: str) -> None:
    assert run("train", *arguments) == (2, f"weir train: {message}\n")


def test_version() -> None:
    status, output = run("--version")
    root = Path(__file__).parents[2]
    git = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    assert status == 0
    first, second = output.splitlines()
    assert re.fullmatch(rf"weir [0-9.]+{re.escape(f' (commit {commit})') if commit else ''}", first)
    assert re.fullmatch(r"softp4 [0-9.]+ \(software switch\)", second)


@pytest.mark.parametrize(
    ("words", "completed"), [("weir calib", "calibrate"), ("weir train --resu", "--resume")]
)
def test_shells_complete_commands_and_their_options(words: str, completed: str) -> None:
    environment = {
        **os.environ, "_WEIR_COMPLETE": "complete_bash", "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }  # fmt: skip
    program = "import sys; sys.argv = ['weir']; from weir.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [completed], done.stderr


@pytest.mark.parametrize(
    ("command", "name"), [("train", "weir.train.cli:train"), ("compare", "weir.compare.cli:compare")]
)
def test_training_options_are_those_of_a_training(command: str, name: str) -> None:
    """Every setting of TrainConfig is an option, with the same default."""
    module, _, function = name.partition(":")
    options = inspect.signature(getattr(importlib.import_module(module), function)).parameters
    fields = TrainConfig.model_fields
    for option in options.keys() & fields.keys() - {"name"}:
        unset = fields[option].is_required() or fields[option].default == ()
        assert options[option].default == (None if unset else fields[option].default), option
    left_out = fields.keys() - options.keys()
    own = {"hosts", "method", "seed", "reference", "pcap", "placement", "save_every", "resume"}
    assert left_out == (own if command == "compare" else set())


OWN = str(Path(__file__).parents[2] / "examples" / "own_method.py")


@pytest.mark.parametrize(
    "arguments",
    [
        ["methods", "--plugin", OWN],
        ["bench", "run", "gradients/selection", "--quick", "--plugin", OWN, "--set", "methods=topk,window"],
    ],
)
def test_a_command_knows_a_method_of_ones_own(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "weir", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\W*window\b", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["methods"], ["calibrate"], ["bench", "run", "gradients/density"]],
)
def test_a_plugin_that_is_not_there_is_named(arguments: list[str]) -> None:
    status, output = run(*arguments, "--plugin", "none.py")
    assert status == 2 and "--plugin" in output and "no such file" in output
