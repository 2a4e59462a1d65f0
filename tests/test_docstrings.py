# SPDX-License-Identifier: Apache-2.0
"""Docstrings begin with a summary, not a question; public ones have it on one line, and list arguments."""

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import weir
import weir.torch

ROOT: Final = Path(__file__).resolve().parent.parent

# Packages that keep to it; a new one is added when it does.
FOLDERS: Final = (
    "agent_service",
    "bench",
    "controller",
    "host_agent/transport",
    "host_agent/collectives",
    "host_agent/compression",
    "host_agent/flows",
    "host_agent/parameter_server",
    "host_agent/torch",
    "p4src",
    "simulator",
    "softswitch/softp4/native",
    "softswitch/softp4/p4rt",
    "softswitch/softp4/p4runtime",
    "weir/calibrate",
    "weir/compare",
    "weir/pcap",
    "weir/server",
    "weir/train",
    "wire",
)

QUESTIONS: Final = {"What", "Whether", "Who", "How", "Where", "When", "Why", "Which"}


def summaries(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line of every docstring in a module, and its first paragraph."""
    documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text.partition("\n\n")[0]


def fault(summary: str) -> str:
    """The reason why a summary is none, or nothing."""
    if summary.split(maxsplit=1)[0].rstrip(",:;.") in QUESTIONS:
        return "begins like a question"
    return "" if summary.endswith(".") else "does not end with a full stop"


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_summary(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {problem}: {summary.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, summary in summaries(path)
        if (problem := fault(summary))
    ]
    assert not wrong, "\n".join(wrong)


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions, and the methods of the classes, that ``weir`` and ``weir.torch`` export."""
    exported = [(name, getattr(package, name)) for package in (weir, weir.torch) for name in package.__all__]
    for name, thing in exported:
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for member, function in vars(thing).items():
                if inspect.isfunction(function) and not member.startswith("_"):
                    yield f"{name}.{member}", function


def test_public_functions_list_their_arguments() -> None:
    wrong = []
    for name, function in public_functions():
        taken = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name not in ("self", "cls") and parameter.kind != parameter.VAR_KEYWORD
        ]
        text = inspect.getdoc(function) or ""
        wrong += [f"{name}: {each}" for each in taken if f"\n    {each}:" not in text.partition("Args:")[2]]
    assert not wrong, "\n".join(wrong)


def test_public_summaries_have_one_line() -> None:
    classes = [
        (name, thing)
        for package in (weir, weir.torch)
        for name in package.__all__
        if inspect.isclass(thing := getattr(package, name))
    ]
    wrong = [
        name
        for name, thing in [*classes, *public_functions()]
        if "\n" in (inspect.getdoc(thing) or "").partition("\n\n")[0]
    ]
    assert not wrong, "\n".join(wrong)
