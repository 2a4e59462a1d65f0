# SPDX-License-Identifier: Apache-2.0
"""Own incast through short queues: the table, and what lossless flows promise beside DCTCP."""

from dataclasses import replace

import pytest

from weir.bench import incast
from weir.bench.incast import measure
from weir.bench.tail_cases import CONTENDERS, Scenario, run

SMALL = Scenario(racks=2, others=0, warmup=1, tensors=3)


def test_a_table_comes_out_with_a_row_for_each_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert measure([16], [8192, 16384], [4], 1, SMALL, processes=1) == []  # nothing overflowed
    rows = [line for line in capsys.readouterr().out.splitlines() if "KiB, 4:1" in line]
    assert len(rows) >= 2


def test_trimming_that_does_not_work_is_named_where_queues_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = [16], [65536], [8], 1, SMALL
    assert measure(*crowded, processes=1) == []
    planted = {name: replace(one, sheds="nothing") for name, one in incast._CONTENDERS.items()}
    monkeypatch.setattr(incast, "_CONTENDERS", planted)
    assert measure(*crowded, processes=1) == ["16, 64 KiB, 8:1: nothing was trimmed"]


def test_lossless_flows_stay_close_to_dctcp_in_queues_that_overflow() -> None:
    """The sum of all first windows is several times what a queue holds; only virtual time is compared."""
    scenario = Scenario(load=0, others=0, workers=4, depth=32, tensor=131_072, tensors=3)
    lossless, dctcp = (next(one for one in CONTENDERS if one.name[0] == letter) for letter in "df")
    flows, streams = (run("server", one, scenario, 1) for one in (lossless, dctcp))
    assert flows.counts["retransmissions"] > 0
    assert max(flows.times) < 1.1 * max(streams.times)
