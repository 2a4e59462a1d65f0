# SPDX-License-Identifier: Apache-2.0
"""Interrupts of a run: at once, but never in the middle of taking a step in."""

import signal

import pytest

from weir.train.running import interruptible, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_has_begun_ends_before_an_interrupt(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        with uninterrupted():
            signal.raise_signal(number)
            done.append("in the block")
        done.append("after it")
    assert done == ["in the block"]


def test_later_interrupts_are_ignored_in_the_block_too() -> None:
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
