# SPDX-License-Identifier: Apache-2.0
"""The documentation site, built by ``make docs``. Its source folder is the repository."""

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer.main
from pygments.lexers.special import TextLexer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "softswitch")]

from weir import cli  # noqa: E402
from weir.train import options  # noqa: E402

project = "Weir"
author = "The Weir authors"
copyright = author
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/*/*.md",
    "softswitch/docs/*.md",
    "p4src/README.md",
    "examples/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
highlight_language = "text"
html_theme = "furo"
html_title = "Weir"
html_show_sourcelink = False
myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_mock_imports: list[str] = []
napoleon_numpy_docstring = False

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!https?:|#|mailto:)[^)#\s]+)(#[^)\s]*)?\)")
PERCENT = re.compile(r"(?m)(?<=\d) (?=%[^\n]*\|$)")  # in a row of a table
PAGES = {path for pattern in include_patterns for path in ROOT.glob(pattern)}
PAGES |= {ROOT / "docs/reference/command-line.md"}  # written below
PLACES = {ROOT / "README.md": ROOT / "docs/index.md"}  # the first page shows the README


def _links_between_pages(app: Any, docname: str, source: list[str]) -> None:
    """Make a page fit the site: links to other files become text; a percent sign stays with its number."""
    page = (ROOT / docname).parent

    def fitting(folder: Path) -> Callable[[re.Match[str]], str]:
        def link(found: re.Match[str]) -> str:
            place = (folder / found[3]).resolve()
            place = PLACES.get(place, place)
            if found[1] or place in PAGES:
                return f"{found[1]}[{found[2]}]({os.path.relpath(place, page)}{found[4] or ''})"
            return found[2]

        return link

    source[0] = LINK.sub(fitting(page), source[0])
    source[0] = PERCENT.sub("\N{NO-BREAK SPACE}", source[0])
    if docname == root_doc:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        source[0] = LINK.sub(fitting(ROOT), readme) + "\n" + source[0]


def _command_line(path: str, command: Any) -> list[str]:
    """Describe a command and its subcommands in Markdown."""
    context = command.context_class(command, info_name=path)
    lines = [f"{'#' * min(path.count(' ') + 2, 4)} {path}", "", _text(command.help), ""]
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            _, child, _ = command.resolve_command(context, [name])
            lines += _command_line(f"{path} {name}", child)
        return lines
    lines += ["```text", " ".join([path, *command.collect_usage_pieces(context)]), "```", ""]
    rows = [_row(parameter) for parameter in command.params]
    rows = [row for row in rows if row]
    if rows:
        lines += ["| option | default | |", "| --- | --- | --- |", *rows, ""]
    return lines


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = getattr(parameter, "default", None)
    shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    return f"| {names} | {shown} | {_cell(getattr(parameter, 'help', ''))} |"


def _settings() -> list[str]:
    """Describe the settings of training that have no option of their own, in Markdown."""
    rows = [row for row in options.settings() if row["option"] is None]
    heads = ["## Settings for --set and --config", "", "| setting | default | |", "| --- | --- | --- |"]
    cells = [f"| `{row['setting']}` | {row['default'] or ''} | {_cell(row['meaning'])} |" for row in rows]
    return [*heads, *cells, ""]


def _cell(help: str | None) -> str:
    """Return a help text for a cell of a table."""
    return _text(help).replace("|", "\\|")


def _text(help: str | None) -> str:
    """Return a help text in Markdown."""
    return " ".join((help or "").replace("``", "`").split())


def _write_command_line(app: Any) -> None:
    """Write the reference of the command line from the commands themselves."""
    path = ROOT / "docs" / "reference" / "command-line.md"
    path.parent.mkdir(exist_ok=True)
    lines = ["# Command line", "", "Generated from the commands' own help texts.", ""]
    command = typer.main.get_command(cli.app)
    text = "\n".join([*lines, *_command_line("weir", command), *_settings()]) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Connect the parts above to the build."""
    app.add_lexer("mermaid", TextLexer)  # diagrams stay text: the usual extension loads code from the network
    app.connect("builder-inited", _write_command_line)
    app.connect("source-read", _links_between_pages)
