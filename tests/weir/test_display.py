# SPDX-License-Identifier: Apache-2.0
"""The live table, as a terminal shows it."""

import io

from rich.console import Console

from weir.train.config import make_config
from weir.train.display import LiveTable


def test_a_phase_is_shown_while_it_lasts_and_no_longer() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    table = LiveTable(make_config(), console)

    def screen() -> str:
        with console.capture() as capture:
            console.print(table._render())
        return capture.get()

    table.phase("starting switch and controller")
    assert "starting switch and controller" in screen()
    table.phase("")
    assert "starting switch and controller" not in screen()
