# SPDX-License-Identifier: Apache-2.0
"""The pages are right about the code: paths, links, names, commands and the arrows between rooms exist."""

import ast
import functools
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.test_architecture import imports, modules

ROOT = Path(__file__).resolve().parents[1]
# The changelog names what is gone, too; of it only links and names in weir are checked.
PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "p4src/README.md"),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("**/docs/*.md")),
]
USERS_FILES = {"train.py", "basic.p4", "first_sum.py"}  # in examples: files that a reader has
ELSEWHERE = {"backends/bmv2/bmv2stf.py"}  # in p4c's repository
SOURCE = re.compile(r"[\w.*/-]+\.(?:py|c|h|p4|proto)")
DOTTED = re.compile(r"(?<![\w./-])(?:weir|softp4)(?:\.[A-Za-z_]\w*)+")
MEMBER = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)\b.*")


@dataclass(frozen=True)
class Text:
    """A page, taken apart: code spans, fenced blocks by language, and the text without the blocks."""

    spans: tuple[str, ...]
    blocks: tuple[tuple[str, str], ...]
    prose: str


@functools.cache
def page(name: str) -> Text:
    """Return a page of the repository."""
    raw = (ROOT / name).read_text(encoding="utf-8")
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    prose = fence.sub("", raw)
    spans = tuple(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))
    return Text(spans, tuple(fence.findall(raw)), prose)


@functools.cache
def tracked() -> tuple[str, ...]:
    """Return the files that are in the repository, or are to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not listed:  # no git: a source archive
        listed = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return tuple(file for file in listed if (ROOT / file).exists())


def roots() -> set[str]:
    """Return the folders at the top of the repository."""
    return {file.split("/")[0] for file in tracked() if "/" in file}


@pytest.mark.parametrize("name", PAGES)
def test_paths_exist(name: str) -> None:
    text = page(name)
    code = [
        *text.spans,
        *(line for language, block in text.blocks for line in block.splitlines() if not language),
    ]
    words = {word.strip("`'\"(),:;") for line in code for word in line.split()}
    in_folder = {word for word in words if "/" in word and word.split("/")[0] in roots()}
    missing = {word for word in in_folder if not list(ROOT.glob(word.rstrip("/")))}
    files = {span for span in text.spans if SOURCE.fullmatch(span)} - USERS_FILES - ELSEWHERE
    pattern = {file: re.compile("(.*/)?" + re.escape(file).replace(r"\*", ".*")) for file in files}
    missing |= {file for file in files if not any(pattern[file].fullmatch(known) for known in tracked())}
    assert not missing


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page(name).prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        place = (ROOT / name).parent / file if file else ROOT / name
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert not broken


def anchors(place: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page(str(place.resolve().relative_to(ROOT))).prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_dotted_names_exist(name: str) -> None:
    text = page(name)
    found = {
        word for code in (*text.spans, *(block for _, block in text.blocks)) for word in DOTTED.findall(code)
    }
    assert not {word for word in found if not exists(word)}


def exists(dotted: str) -> bool:
    """Return whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@functools.cache
def members() -> dict[str, set[str]]:
    """Return what every class of the code has, inherited members of our own classes included."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in tracked():
        if not file.endswith(".py") or "tests" in Path(file).parts:
            continue
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(_members(node))
                bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
    for _ in range(3):  # as deep as we inherit
        for name, parents in bases.items():
            own[name] |= {member for parent in parents for member in own.get(parent, set())}
    return own


def _members(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef):
            yield child.name
        elif isinstance(child, ast.AnnAssign | ast.Assign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id
                elif isinstance(target, ast.Attribute):
                    yield target.attr


@pytest.mark.parametrize("name", PAGES)
def test_members_of_classes_exist(name: str) -> None:
    wrong = []
    for span in page(name).spans:
        found = MEMBER.fullmatch(span)
        if found and found[1] in members() and found[2] not in members()[found[1]]:
            wrong.append(span)
    assert not wrong


COMMANDS = ("weir", "softp4", "make", "python", "python3", "pytest", "torchrun")


def commands(name: str) -> Iterator[list[str]]:
    """Yield the command lines of a page, as words: of blocks without a language, and of code spans."""
    text = page(name)
    lines = [
        (line, True)
        for language, block in text.blocks
        if not language
        for line in re.sub(r"\\\n\s*", "", block).splitlines()
    ]
    for line, typed in [*lines, *((span, False) for span in text.spans)]:
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        start = re.match(r"(?:\w+=\S+ |sudo )*((?:\.venv/bin/)?([\w.-]+))(?:\s|$)", plain)
        if not start or start[2] not in COMMANDS:
            continue
        if typed:
            assert "…" not in plain, f"{plain}: nobody can type this"
        elif "…" in plain:
            continue
        words = shlex.split(plain[start.start(1) :])
        yield [start[2], *words[1:]]


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_their_options_exist(name: str) -> None:
    for words in commands(name):
        problem = check(words)
        assert not problem, f"{shlex.join(words)}: {problem}"


def check(words: list[str]) -> str:
    """Return what is wrong with a command line, or nothing."""
    match words:
        case ["weir", *rest]:
            return check_weir(rest)
        case ["softp4", *rest]:
            source = (ROOT / "softswitch/softp4/simple_switch.py").read_text(encoding="utf-8")
            options = [word.lstrip("-") for word in rest if re.match(r"--\w", word)]
            return next((f"no option {o}" for o in options if f'{o}"' not in source), "")
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
    import typer.main

    from weir import cli

    command: Any = typer.main.get_command(cli.app)
    context = command.context_class(command)
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name.startswith("--"):
            if name not in _options(command):
                return f"no option {name}"
            taking = {o for p in command.params if not p.is_flag for o in (*p.opts, *p.secondary_opts)}
            rest = rest[1:] if name in taking else rest
        elif name not in command.list_commands(context):
            return f"no command {name}"
        else:
            _, command, _ = command.resolve_command(context, [name])
    if "|" in rest:  # alternatives, as in "list | stop"
        return ""
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    if unknown := [option for option in given if option not in _options(command)]:
        return f"no option {unknown[0]}"
    return check_bench(rest) if words[:1] == ["bench"] else ""


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


def _options(command: Any) -> set[str]:
    return {"--help", *(name for p in command.params for name in (*p.opts, *p.secondary_opts))}


def test_environment_variables_are_all_listed() -> None:
    """The table in docs/operations.md has every WEIR_ variable that the code reads, and no other."""
    table = set(re.findall(r"`(WEIR_[A-Z0-9_]+)`", page("docs/operations.md").prose))
    read = set()
    for file in tracked():
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
    """The diagram of rooms in docs/architecture.md: every import follows its arrows, directly or in steps."""
    blocks = page("docs/architecture.md").blocks
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
