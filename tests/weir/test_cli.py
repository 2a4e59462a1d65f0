# SPDX-License-Identifier: Apache-2.0
"""The ``weir`` command: quick to say what it can do, clear about what it was given."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.harness.commands import WEIR, Command
from weir.cli import _COMMANDS, _load, app
from weir.train.config import OPTIONS, TrainConfig


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_help_lists_every_command() -> None:
    status, output = run("--help")
    assert status == 0
    for name in (
        "train",
        "compare",
        "methods",
        "settings",
        "switch",
        "controller",
        "status",
        "pcap",
        "bench",
    ):
        assert f" {name} " in output


@pytest.mark.parametrize(
    "command", ["train", "compare", "methods", "settings", "switch", "controller", "status", "pcap", "bench"]
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
        (["--model", "lm", "--set", "data=digits"], "model 'lm' trains on 'stdlib', not on 'digits'"),
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


def test_other_systems_than_linux_are_refused_in_words() -> None:
    says = "softp4 runs on Linux only, not on darwin: use a virtual machine, a container or WSL 2\n"
    for code, error in (
        ("from weir.cli import main; sys.platform = 'darwin'; main()", f"weir: {says}"),
        ("sys.platform = 'darwin'; import softp4.native", f"ImportError: {says}"),
    ):
        command = [sys.executable, "-c", f"import sys; {code}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.endswith(error)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("weir calib", "calibrate"),
        ("weir train --resu", "--resume"),
        ("weir train --set lane_b", "lane_bits="),
    ],
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


def test_training_has_few_options_and_every_setting_is_in_reach() -> None:
    from weir.train.cli import train

    assert inspect.signature(train).parameters.keys() == {
        *OPTIONS,
        "context",
        "assigned",
        "config",
        "as_json",
    }
    assert len(OPTIONS) <= 20
    settings = {row["setting"]: row for row in json.loads(run("settings", "--json")[1])}
    fields = TrainConfig.model_fields
    assert settings.keys() == fields.keys() - {"resume"}
    for name, row in settings.items():
        unset = fields[name].is_required() or fields[name].default in ((), None)
        assert row["default"] == (None if unset else str(fields[name].default)), name


NO_TABLE = {
    "hub", "switch", "shell", "server", "controller run", "controller qos", "clean", "bench results",
}  # fmt: skip


def commands() -> dict[str, Any]:
    """Return every command that runs something, by its name; those of `softp4 ctl` are another program's."""
    found = {}
    for name, entry in _COMMANDS.items():
        command = _load(name, entry)
        if name == "switch" or not hasattr(command, "commands"):
            found[name] = command
        else:
            found |= {f"{name} {each}": one for each, one in command.commands.items()}
    return found


def test_a_command_that_prints_a_table_also_prints_json() -> None:
    with_json = {
        name for name, command in commands().items() for each in command.params if "--json" in each.opts
    }
    assert with_json == commands().keys() - NO_TABLE


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    """A folder here and a file there need two names."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for command in commands().values():
        for each in command.params:
            if each.param_type_name == "option":
                kinds[each.opts[0]].add(each.metavar or ("flag" if each.is_flag else "value"))
    assert {option: kind for option, kind in kinds.items() if len(kind) > 1} == {}


@pytest.mark.parametrize(
    ("command", "assigned", "says"),
    [
        ("train", "densty=0.1", "no setting is called 'densty'; did you mean density"),
        ("train", "lane-bits", "--set lane-bits: write NAME=VALUE"),
        ("train", "resume=runs/a", "no setting is called 'resume'"),
        ("train", "workers=3", "--set workers: the command line sets it twice"),
        ("train", "lane_bits=12", "--set lane_bits: input should be 32, 16, 8 or 'auto', not 12"),
        ("train", "exclude=*.bais,1d", "--set exclude: no parameter is called '*.bais'"),
        ("compare", "pcap=a.pcap", "no setting is called 'pcap'"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(command: str, assigned: str, says: str) -> None:
    status, output = run(command, "--workers", "2", "--set", assigned)
    assert status == 2 and says in output


def test_settings_come_from_a_file_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: cnn\nlane-bits: auto\nlane_error: 2\nworkers: 99\n")
    status, output = run("train", "--config", str(file), "--workers", "40", "--set", "density=7")
    assert status == 2
    assert [line.split(":")[0] for line in output.removeprefix("weir train: ").splitlines()] == [
        "--workers",
        "--density",
        "--set lane_error",
    ]
    assert "not '40'" in output or "not 40" in output


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["methods"], "name"),
        (["bench", "list"], "benchmark"),
        (["bench", "list", "switch/rate"], "parameters"),
    ],
)
def test_what_a_command_lists_comes_as_json(arguments: list[str], key: str) -> None:
    status, output = run(*arguments, "--json")
    assert status == 0 and all(row[key] for row in json.loads(output))


OWN = str(Path(__file__).parents[2] / "examples" / "own_method.py")


@pytest.mark.parametrize(
    "arguments",
    [
        ["methods", "--plugin", OWN],
        ["bench", "run", "gradients/selection", "--quick", "--plugin", OWN, "--set", "methods=topk,window"],
    ],
)
def test_a_command_knows_a_method_of_ones_own(arguments: list[str]) -> None:
    with Command(*WEIR, *arguments) as command:
        said = command.said()
    assert command.returncode == 0, said
    assert re.search(r"^\W*window\b", said, re.MULTILINE), said


@pytest.mark.parametrize(
    "arguments",
    [["methods"], ["calibrate"], ["bench", "run", "gradients/density"]],
)
def test_a_plugin_that_is_not_there_is_named(arguments: list[str]) -> None:
    status, output = run(*arguments, "--plugin", "none.py")
    assert status == 2 and "--plugin" in output and "no such file" in output
