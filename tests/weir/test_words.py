# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them: a ratio or a share that is not zero never reads as zero."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.report.words import duration, factor, percent, ratio, times


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (12.5, "12.50x"),
        (1.0, "1.00x"),
        (0.996, "1.00x"),
        (0.1, "0.10x"),
        (0.0634, "0.063x"),
        (0.0042, "0.0042x"),
        (4.2e-7, "0.00000042x"),
        (0.0, "0x"),
        (math.nan, "–"),
        (12345.678, "12345.68x"),
    ],
)
def test_a_factor_has_two_digits_at_least(value: float, words: str) -> None:
    assert times(value) == words


@given(st.floats(1e-12, 1e12))
def test_no_ratio_reads_as_zero_or_as_another(value: float) -> None:
    assert float(factor(value)) == pytest.approx(value, rel=0.06, abs=0.0051 if value > 0.1 else 0)
    assert "e" not in factor(value)


def test_shares_and_times_that_are_small_are_not_zero_either() -> None:
    assert [percent(share) for share in (0.972, 0.049, 0.00042, 0.0)] == ["97.2 %", "4.9 %", "0.042 %", "0 %"]
    assert [duration(s) for s in (12.3, 0.85, 0.0123, 0.0031, 0.00031)] == [
        "12.3 s", "850 ms", "12 ms", "3.1 ms", "0.31 ms",
    ]  # fmt: skip
    assert ratio(1.0, 0.0) == "–"


def test_all_factors_are_written_by_the_one_formatter() -> None:
    root = Path(__file__).parents[2]
    for folder in ("weir", "bench", "controller", "host_agent", "simulator"):
        for file in (root / folder).rglob("*.py"):
            source = file.read_text(encoding="utf-8")
            assert not re.search(r":\.\df\}x\b", source), file
