# SPDX-License-Identifier: Apache-2.0
"""The pages are right about the code: paths, links, names, commands and the arrows between rooms exist."""

import importlib
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harness.pages import Pages, check_softp4, check_typer
from tests.test_architecture import imports, modules

ROOT = Path(__file__).resolve().parents[1]
# The changelog names what is gone, too; of it only links and names in weir are checked.
PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "p4src/README.md"),
    *sorted(
        str(path.relative_to(ROOT))
        for path in ROOT.glob("docs/**/*.md")
        if path.name != "command-line.md"  # generated
    ),
]
USERS_FILES = {"train.py", "basic.p4", "first_sum.py", "send.py"}  # in examples: files that a reader has
pages = Pages(ROOT, sorted(USERS_FILES))


@pytest.mark.parametrize("name", PAGES)
def test_paths_exist(name: str) -> None:
    assert not pages.missing_paths(name)


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    assert not pages.broken_links(name)


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_dotted_names_exist(name: str) -> None:
    assert not pages.unknown_names(name)


@pytest.mark.parametrize("name", PAGES)
def test_members_of_classes_exist(name: str) -> None:
    assert not pages.unknown_members(name)


COMMANDS = ("weir", "softp4", "make", "python", "python3", "pytest", "torchrun")


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_their_options_exist(name: str) -> None:
    for words in pages.commands(name, COMMANDS):
        problem = check(words)
        assert not problem, f"{shlex.join(words)}: {problem}"


def check(words: list[str]) -> str:
    """Return what is wrong with a command line, or nothing."""
    match words:
        case ["weir", *rest]:
            return check_weir(rest)
        case ["softp4", *rest]:
            return check_softp4(rest)
        case ["make", *rest]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            targets = [] if "-C" in rest else [word for word in rest if word.isalpha()]
            return next((f"no target {t}" for t in targets if f"\n{t}:" not in makefile), "")
        case ["python" | "python3", file, *rest] if file.endswith(".py"):
            return check_script(file, rest)
        case ["torchrun", *rest]:
            scripts = [word for word in rest if word.endswith(".py") and word not in USERS_FILES]
            return next((problem for s in scripts if (problem := check_script(s, rest[rest.index(s) :]))), "")
        case ["python", "-m", module, *_]:
            return "" if importlib.util.find_spec(module) else f"no module {module}"
    return ""


def check_script(file: str, words: list[str]) -> str:
    """Return what is wrong with the options given to a script: they stand in it, or in one beside it."""
    path = ROOT / file
    if not path.exists():
        return f"no file {file}"
    source = "".join(other.read_text(encoding="utf-8") for other in path.parent.glob("*.py"))
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next((f"no option {option}" for option in options if f'"{option}"' not in source), "")


def check_weir(words: list[str]) -> str:
    """Follow ``weir``'s words through its commands; options are looked up where they stand."""
    from weir import cli

    problem, rest = check_typer(cli.app, words)
    if problem or words[:1] not in (["bench"], ["train"], ["compare"]):
        return problem
    return check_bench(rest) if words[:1] == ["bench"] else check_settings(words)


def check_settings(words: list[str]) -> str:
    """Return what is wrong with the names of settings that ``--set`` assigns."""
    from weir.train.config import ConfigError
    from weir.train.options import OF_A_RUN, SHARED, check_name

    known = SHARED.keys() | (OF_A_RUN.keys() if words[0] == "train" else set())
    try:
        for assigned in (after for word, after in pairwise(words) if word == "--set"):
            check_name(assigned.partition("=")[0], known, "--set")
    except ConfigError as error:
        return str(error)
    return ""


def check_bench(words: list[str]) -> str:
    """Return what is wrong with a benchmark's name or with the parameters that it is given."""
    from weir.bench.case import ParameterError
    from weir.bench.suites import UnknownCaseError, find

    names = [word for word in words if "/" in word and "=" not in word]
    assigned = dict(after.split("=", 1) for word, after in pairwise(words) if word == "--set")
    try:
        for name in names[:1]:
            (case,) = find(name)
            case.parameters(assigned)
    except (ParameterError, UnknownCaseError) as error:
        return str(error)
    return ""


def test_environment_variables_are_all_listed() -> None:
    """The table in docs/guides/operations.md has every WEIR_ variable that the code reads, and no other."""
    table = set(re.findall(r"`(WEIR_[A-Z0-9_]+)`", pages.page("docs/guides/operations.md").prose))
    read = set()
    for file in pages.tracked:
        if file.endswith(".py") and file != "tests/test_docs.py":
            source = (ROOT / file).read_text(encoding="utf-8")
            read |= set(re.findall(r"environ(?:\.get\(|\[)\s*\"(WEIR_[A-Z0-9_]+)\"", source))
            read |= set(
                re.findall(r"(?:envvar=|[(\s])\"(WEIR_(?:TLS|SHELL|CHILD|USER|BENCH)_[A-Z]+)\"", source)
            )
        elif file.endswith((".c", ".h")):
            read |= set(
                re.findall(r"getenv\(\"(WEIR_[A-Z0-9_]+)\"\)", (ROOT / file).read_text(encoding="utf-8"))
            )
    assert table == read


def test_rooms_import_only_along_the_arrows() -> None:
    """The diagram of rooms in architecture.md: every import follows its arrows, directly or in steps."""
    blocks = pages.page("docs/internals/architecture.md").blocks
    diagram = next(block for language, block in blocks if language == "mermaid" and "facade" in block)
    node = re.compile(r'^    (\w+)\["([\w/]+?)/?(?:<br/>.*)?"\]', re.MULTILINE)
    room = {
        name: f"weir.{label}".removeprefix("weir.softswitch/").replace("/", ".")
        for name, label in node.findall(diagram)
    }
    room["facade"] = "weir"
    reach = {name: {name} for name in room.values()}
    for _ in room:
        for start, end in re.findall(r"^    (\w+) --> (\w+)$", diagram, re.MULTILINE):
            reach[room[start]] |= reach[room[end]]

    def home(module: str) -> str:
        return max((name for name in reach if f"{module}.".startswith(f"{name}.")), key=len)

    wrong = {
        f"{module} imports {other}"
        for module in modules()
        for other in imports(module) & modules().keys()
        if home(other) not in reach[home(module)]
        if not f"{other}.".startswith("weir.p4src.")  # data, which anybody may read
    }
    assert not wrong
