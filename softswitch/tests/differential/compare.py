# SPDX-License-Identifier: Apache-2.0
"""Differences between what two switches did with one scenario, as text."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.differential.play import Played, counters
from tests.differential.scenario import Scenario


def differences(program: Any, scenario: Scenario, bmv2: Played, soft: Played) -> Iterator[str]:
    """Yield each frame whose outcome differs, then each counter cell."""
    for number, (wanted, got) in enumerate(zip(bmv2.left, soft.left, strict=True)):
        if wanted != got:
            port, frame = scenario.frames[number]
            outcomes = f"  bmv2: {_words(wanted)}\n  soft: {_words(got)}"
            yield f"frame {number}, port {port}: {frame.hex()}\n{outcomes}"
    for (name, index), want, have in zip(counters(program), bmv2.counts, soft.counts, strict=True):
        if want != have:
            yield f"counter {name}[{index}]: bmv2 {want}, soft {have}"


def _words(left: Sequence[tuple[int, bytes]]) -> str:
    return ", ".join(f"port {port} {frame.hex()}" for port, frame in left) or "nothing"
