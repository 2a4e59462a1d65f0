# SPDX-License-Identifier: Apache-2.0
"""Pages of documentation, and where they are wrong about the code: paths, links, names, command lines."""

import ast
import functools
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SOURCE: Final = re.compile(r"[\w.*/-]+\.(?:py|c|h|p4|proto)")
DOTTED: Final = re.compile(r"(?<![\w./-])(?:weir|softp4)(?:\.[A-Za-z_]\w*)+")
MEMBER: Final = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)\b.*")
OPTION: Final = re.compile(r"--?[a-z]")


@dataclass(frozen=True)
class Text:
    """A page, taken apart: code spans, fenced blocks by language, and the text without the blocks."""

    spans: tuple[str, ...]
    blocks: tuple[tuple[str, str], ...]
    prose: str


@functools.cache
def text_of(path: Path) -> Text:
    """Return a page, taken apart."""
    raw = path.read_text(encoding="utf-8")
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    prose = fence.sub("", raw)
    spans = tuple(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))
    return Text(spans, tuple(fence.findall(raw)), prose)


class Pages:
    """The pages below a folder, whose paths are relative to it.

    Args:
        root: the folder.
        elsewhere: names of files that are not there, and need not be.
    """

    def __init__(self, root: Path, elsewhere: Sequence[str] = ()) -> None:
        self.root = root
        self._elsewhere = frozenset(elsewhere)

    @functools.cached_property
    def tracked(self) -> tuple[str, ...]:
        """Files that are in the repository, or will be."""
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, check=False
        ).stdout.split()
        if not listed:  # no git: a source archive
            listed = [str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()]
        return tuple(file for file in listed if (self.root / file).exists())

    def page(self, name: str) -> Text:
        """Return a page."""
        return text_of(self.root / name)

    def missing_paths(self, name: str) -> set[str]:
        """Return the paths and source files that a page names and that are not there."""
        text = self.page(name)
        roots = {file.split("/")[0] for file in self.tracked if "/" in file}
        code = [
            *text.spans,
            *(line for language, block in text.blocks for line in block.splitlines() if not language),
        ]
        words = {word.strip("`'\"(),:;") for line in code for word in line.split()}
        in_folder = {word for word in words if "/" in word and word.split("/")[0] in roots}
        missing = {word for word in in_folder if not list(self.root.glob(word.rstrip("/")))}
        files = {span for span in text.spans if SOURCE.fullmatch(span)} - self._elsewhere
        pattern = {file: re.compile("(.*/)?" + re.escape(file).replace(r"\*", ".*")) for file in files}
        return missing | {
            file for file in files if not any(pattern[file].fullmatch(known) for known in self.tracked)
        }

    def broken_links(self, name: str) -> list[str]:
        """Return the links of a page that lead nowhere."""
        broken = []
        for target in re.findall(r"\]\(([^)\s]+)\)", self.page(name).prose):
            if "://" in target:
                continue
            file, _, anchor = target.partition("#")
            place = (self.root / name).parent / file if file else self.root / name
            if not place.exists() or (anchor and anchor not in anchors(place)):
                broken.append(target)
        return broken

    def unknown_names(self, name: str) -> set[str]:
        """Return the dotted names in a page's code that are no modules, nor in one."""
        text = self.page(name)
        found = {
            word
            for code in (*text.spans, *(block for _, block in text.blocks))
            for word in DOTTED.findall(code)
        }
        return {word for word in found if not exists(word)}

    def unknown_members(self, name: str) -> list[str]:
        """Return the spans ``Class.member`` of a page where our class has no such member."""
        wrong = []
        for span in self.page(name).spans:
            found = MEMBER.fullmatch(span)
            if found and found[1] in self.members and found[2] not in self.members[found[1]]:
                wrong.append(span)
        return wrong

    @functools.cached_property
    def members(self) -> dict[str, set[str]]:
        """Members of every class of the code, with those inherited from our own classes."""
        own: dict[str, set[str]] = {}
        bases: dict[str, set[str]] = {}
        for file in self.tracked:
            if not file.endswith(".py") or "tests" in Path(file).parts:
                continue
            for node in ast.walk(ast.parse((self.root / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    own.setdefault(node.name, set()).update(_members(node))
                    names = (base.id for base in node.bases if isinstance(base, ast.Name))
                    bases.setdefault(node.name, set()).update(names)
        for _ in range(3):  # as deep as we inherit
            for name, parents in bases.items():
                own[name] |= {member for parent in parents for member in own.get(parent, set())}
        return own

    def commands(self, name: str, programs: Sequence[str]) -> Iterator[list[str]]:
        """Yield a page's command lines of some programs, as words: those of plain blocks, and spans."""
        text = self.page(name)
        lines = [
            (line, True)
            for language, block in text.blocks
            if not language
            for line in re.sub(r"\\\n\s*", "", block).splitlines()
        ]
        for line, typed in [*lines, *((span, False) for span in text.spans)]:
            plain = re.sub(r"(^|\s)#.*", "", line).strip()
            start = re.match(r"(?:\w+=\S+ |sudo )*((?:\.venv/bin/)?([\w.-]+))(?:\s|$)", plain)
            if not start or start[2] not in programs:
                continue
            if typed:
                assert "…" not in plain, f"{plain}: nobody can type this"
            elif "…" in plain:
                continue
            words = shlex.split(plain[start.start(1) :])
            yield [start[2], *words[1:]]


def anchors(place: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(place.resolve()).prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


def check_typer(app: Any, words: Sequence[str]) -> tuple[str, list[str]]:
    """Follow words through a typer application's commands.

    Returns:
        What is wrong with them, or nothing; and the words behind the command's name.
    """
    import typer.main

    command: Any = typer.main.get_command(app)
    context = command.context_class(command)
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name.startswith("--"):
            if name not in _options(command):
                return f"no option {name}", rest
            taking = {o for p in command.params if not p.is_flag for o in (*p.opts, *p.secondary_opts)}
            rest = rest[1:] if name in taking else rest
        elif name not in command.list_commands(context):
            return f"no command {name}", rest
        else:
            _, command, _ = command.resolve_command(context, [name])
    if "|" in rest:  # alternatives, as in "list | stop"
        return "", rest
    given = [word.partition("=")[0] for word in rest if OPTION.match(word)]
    unknown = [option for option in given if option not in _options(command)]
    return (f"no option {unknown[0]}" if unknown else ""), rest


def check_softp4(words: Sequence[str]) -> str:
    """Return what is wrong with a command line of ``softp4``, or nothing."""
    match list(words):
        case ["run", *rest]:
            from softp4.cli import app

            return check_typer(app, rest)[0]
        case ["ctl", *rest]:
            from softp4.control.cli import app

            return check_typer(app, rest)[0]
    from softp4 import simple_switch

    source = Path(simple_switch.__file__).read_text(encoding="utf-8")
    options = [word.lstrip("-").partition("=")[0] for word in words if re.match(r"--\w", word)]
    return next((f"no option {option}" for option in options if f'{option}"' not in source), "")


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


def _options(command: Any) -> set[str]:
    return {"--help", *(name for p in command.params for name in (*p.opts, *p.secondary_opts))}
