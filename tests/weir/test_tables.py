# SPDX-License-Identifier: Apache-2.0
"""Tables are read at 80 columns: no word is broken, every column is there, each row has its name."""

import pytest

from weir.bench.report import show, spread
from weir.bench.results import Column, Row, Table


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_of_many_columns_comes_in_parts(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    heads = ["ms", "mean", "p99 / a", "planner : best fixed mask", "missing", "others", "DFS, equal energy"]
    rows = [
        [name, *(f"{name[-1]}{i}.25 ms" for i in range(7))] for name in ("d + priorities", "e + trimming")
    ]
    show(
        Table(
            "A title that is longer than the table's first part is wide",
            tuple(map(Column, heads)),
            tuple(Row(name, dict(zip(heads, cells, strict=True))) for name, *cells in rows),
        )
    )
    lines = capsys.readouterr().out.split("command:")[0].splitlines()
    parts = sum("d + priorities" in line for line in lines)
    assert (parts == 1) is (width == 200)
    assert parts == sum("e + trimming" in line for line in lines)
    text = "\n".join(lines)
    for cell in (cell for row in rows for cell in row[1:]):
        assert text.count(cell) == 1
    for word in (word for head in heads[1:] for word in head.split() if word not in ":/"):
        assert word in text
    assert text.count("A title") == 1


def test_one_repetition_has_no_spread() -> None:
    assert not spread([3.0])
    assert spread([9.0, 10.0, 11.0]) == "±10%"
