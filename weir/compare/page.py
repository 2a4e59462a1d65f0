# SPDX-License-Identifier: Apache-2.0
"""compare.html: table, picture and settings in one file that needs no other."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from weir.compare.config import Comparison
from weir.compare.results import Row
from weir.compare.view import COLUMNS, notes, one_line, title

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222 }
body { max-width: 1200px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .35em .7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { vertical-align: bottom; white-space: normal } th:first-child, td:first-child { text-align: left }
tr.failed td, tr.interrupted td { color: #a33 }
ul { color: #666; font-size: 13px } img { max-width: 100% } .table { overflow-x: auto }
"""


def write_page(path: Path, comparison: Comparison, rows: Sequence[Row], picture: Path) -> None:
    """Write the page; ``picture`` is left out where there is none."""
    heading = title(comparison)
    head = "".join(f"<th>{escape(one_line(column.head))}</th>" for column in COLUMNS)
    said = "".join(f"<li>{escape(note)}</li>" for note in notes(comparison, rows))
    image = ""
    if picture.is_file():
        data = base64.b64encode(picture.read_bytes()).decode()
        image = f'<p><img alt="the same figures, drawn" src="data:image/png;base64,{data}"></p>'
    settings = "".join(f"<li>{escape(row.settings)}</li>" for row in rows)
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>Weir: {escape(heading)}</title><style>{_STYLE}</style>\n"
        f"<h1>Weir: methods compared</h1><p>{escape(heading).replace(chr(10), '<br>')}</p>\n"
        f"<div class=table><table><tr><th>method</th>{head}</tr>\n{''.join(map(_line, rows))}</table></div>\n"
        f"<ul>{said}</ul>\n{image}\n<h2>Settings</h2><ul>{settings}</ul>\n",
        encoding="utf-8",
    )


def _line(row: Row) -> str:
    cells = "".join(f"<td>{escape(column.cell(row))}</td>" for column in COLUMNS)
    why = (
        f"<tr class=failed><td colspan={len(COLUMNS) + 1}>{escape(row.problem)}</td></tr>\n"
        if row.problem
        else ""
    )
    return f"<tr class={row.status}><td>{escape(row.method)}</td>{cells}</tr>\n{why}"
