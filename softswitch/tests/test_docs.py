# SPDX-License-Identifier: Apache-2.0
"""The switch's pages are right about the code: paths, links, names, commands and variables exist."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.pages import Pages, check_softp4

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = ("backends/bmv2/bmv2stf.py", "basic.p4")  # in p4c's repository, and in p4lang's tutorials
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))
pages = Pages(ROOT, ELSEWHERE)
COMMANDS = ("softp4", "python", "pytest")


@pytest.mark.parametrize("name", PAGES)
def test_paths_exist(name: str) -> None:
    assert not pages.missing_paths(name)


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    """And to nothing outside this folder, which may be all that a reader has."""
    assert not pages.broken_links(name)
    targets = re.findall(r"\]\(([^)\s]+)\)", pages.page(name).prose)
    places = [(ROOT / name).parent / each.partition("#")[0] for each in targets if "://" not in each]
    assert all(place.resolve().is_relative_to(ROOT) for place in places)


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_dotted_names_exist(name: str) -> None:
    assert not pages.unknown_names(name)


@pytest.mark.parametrize("name", PAGES)
def test_members_of_classes_exist(name: str) -> None:
    assert not pages.unknown_members(name)


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_their_options_exist(name: str) -> None:
    for words in pages.commands(name, COMMANDS):
        problem = check(words)
        assert not problem, f"{shlex.join(words)}: {problem}"


def check(words: list[str]) -> str:
    """Return what is wrong with a command line, or nothing."""
    match words:
        case ["softp4", *rest]:
            return check_softp4(rest)
        case ["python", "-m", module, *rest] if module != "p4runtime_sh":
            if importlib.util.find_spec(module) is None:
                return f"no module {module}"
            usage = subprocess.run(
                [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
            ).stdout
            options = [word for word in rest if word.startswith("--")]
            return next((f"no option {option}" for option in options if option not in usage), "")
    return ""


def test_wrong_commands_are_found() -> None:
    assert check(["softp4", "run", "--porte", "1=a"]) == "no option --porte"
    assert check(["softp4", "ctl", "ports", "lists"]) == "no command lists"
    assert check(["softp4", "--no-p5"]) == "no option no-p5"
    assert check(["python", "-m", "softp4.bench", "lookups", "--repeat", "1"]) == ""
    assert check(["python", "-m", "softp4.bench", "--turns", "1"]) == "no option --turns"


def test_environment_variables_are_all_listed() -> None:
    """The table in docs/switch.md has every SOFTP4_ variable that code or tests read, and no other."""
    table = set(re.findall(r"^\| `(SOFTP4_[A-Z0-9_]+)`", pages.page("docs/switch.md").prose, re.MULTILINE))
    read = set()
    for file in pages.tracked:
        if file.endswith((".py", ".c", ".h")):
            source = (ROOT / file).read_text(encoding="utf-8")
            read |= set(re.findall(r"(?:environ(?:\.get\(|\[)\s*|getenv\()\"(SOFTP4_[A-Z0-9_]+)\"", source))
    assert table == read
