# SPDX-License-Identifier: Apache-2.0
"""The benchmark of new weights: the last engine counts, from the trainer's beginning on."""

import pytest

from weir.bench.collectives.weights import Parameters, Spec, Turn, rows_of
from weir.bench.ranks import Links

LINKS = Links("8mbit", 4, 8_000_000, lambda _rank: ([], {}), ())
SPEC = Spec(1_000_000, Parameters(), 2, (), shaped=True)
KEY = (2, 0.01, "weir")


def turn(began: float, ended: float, processor: float = 0.0, sent: int = 0) -> Turn:
    return Turn(began, ended, processor, 0.004, 0.01, sent)


def test_the_last_engine_counts_from_the_trainers_beginning() -> None:
    trainer = [turn(10.0, 10.1, 0.2, 50_000), turn(20.0, 20.1, 0.2, 70_000)]
    engines = [[turn(10.5, 11.0, 0.1), turn(19.0, 21.0, 0.1)], [turn(10.5, 12.0, 0.3), turn(20.0, 20.5, 0.3)]]
    store: dict[tuple[int, float, str], list[Turn]] = {}
    (row,) = rows_of([{KEY: trainer}, *({KEY: one} for one in engines), store], SPEC, LINKS)
    assert row.values["ms"] == [2000, 1000]
    assert row.values["sent"] == [50_000, 70_000]
    assert row.values["B a value"] == [0.05, 0.07]
    assert row.values["engine"] == pytest.approx([100, 100])  # seconds for 2 MB, the mean of two
    assert row.values["trainer"] == pytest.approx([100, 100])
    assert row.floor == pytest.approx(60)  # 60,000 bytes at 8 Mbit/s
    assert row.setting == {"links": "8mbit", "values": "", "changed": "1%", "engines": 2}
