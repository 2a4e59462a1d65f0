# SPDX-License-Identifier: Apache-2.0
"""``weir bench list`` names every benchmark, with what it does and how long it takes."""

import typer.main
from typer.testing import CliRunner

from weir.bench import cli, listing
from weir.cli import app


def test_every_benchmark_is_listed_with_one_line_and_a_time() -> None:
    names = set(typer.main.get_command(cli.app).commands) - {listing.LIST}  # type: ignore[attr-defined]
    assert listing.EXPECTED.keys() == names
    done = CliRunner().invoke(app, ["bench", "list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.output.splitlines()[1:-1]}
    assert lines.keys() == names
    for name, line in lines.items():
        assert listing.EXPECTED[name] in line
        assert len(line.split(listing.EXPECTED[name])[1].strip()) > 30
