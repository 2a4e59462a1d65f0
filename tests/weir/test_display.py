# SPDX-License-Identifier: Apache-2.0
"""The live table, as a terminal shows it."""

import io

from rich.console import Console

from tests.weir.test_record import step
from weir.host_agent.transport.counters import TransportCounters
from weir.train.config import make_config
from weir.train.display import LiveTable
from weir.train.messages import Delivery
from weir.train.record import RunRecord
from weir.train.watch import NetworkCounts
from weir.train.words import network_rows


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


def test_what_the_network_did_is_shown_where_there_is_one() -> None:
    config = make_config(
        workers=2, topology="leaf-spine-2x2", links="100mbit", loss=0.01, background="incast", loss_budget=0.1
    )
    record = RunRecord("weir", range(2), epochs=1)
    for rank in range(2):
        record.add(
            step(
                rank,
                1,
                delivery=Delivery(
                    TransportCounters(releases=3, timeouts=4), lanes=1000, missing=25, budget=70
                ),
            )
        )
    record.counts = NetworkCounts(
        trims=1234, marks=56, lost=78, background=90, spines={"spine1": 300, "spine2": 100},
        dead={"spine2": "signal SIGKILL"},
    )  # fmt: skip
    rows = dict(network_rows(config, record))
    assert rows == {
        "timeouts, all workers": "8",
        "packets trimmed by switches": "1,234",
        "packets marked by switches": "56",
        "packets lost on purpose": "78",
        "background packets": "90",
        "releases, all workers": "6",
        "missing of the gradient": "2.50 % of at most 7.00 %",
        "summed by spines": "spine1 75.0 %, spine2 25.0 % (dead)",
    }
    console = Console(file=io.StringIO(), force_terminal=True, width=110)
    table = LiveTable(config, console)
    table.begin(record)
    table.begin(RunRecord("gloo", range(2), epochs=1))
    with console.capture() as capture:
        console.print(table._render())
    shown = capture.get()
    for text in (
        "leaf-spine-2x2, links of 100mbit, 1.0 % lost on each",
        "2.50 % of at most 7.00 %",
        "(dead)",
    ):
        assert text in shown
    assert network_rows(make_config(), record) == []
