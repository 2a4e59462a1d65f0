# SPDX-License-Identifier: Apache-2.0
"""Docstrings keep to the house style: how they begin, and that public functions list their arguments."""

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
# No verb begins a sentence with these.
NO_VERBS: Final = QUESTIONS | {
    "The",
    "A",
    "An",
    "This",
    "These",
    "Those",
    "It",
    "All",
    "Per",
    "Of",
    "For",
    "By",
}


def first_words(path: Path) -> list[tuple[int, ast.AST, str]]:
    """Return line, node and first word of every docstring in a module."""
    documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    return [
        (getattr(node, "lineno", 1), node, text.split()[0].rstrip(",:;."))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is documented by a noun."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_verb_and_never_with_a_question(folder: str) -> None:
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, node, word in first_words(path):
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node)
            begins_wrong = word in (NO_VERBS if function else QUESTIONS)
            if begins_wrong or (function and not word[0].isupper()):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {word} ...")
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
