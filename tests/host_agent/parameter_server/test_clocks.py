# SPDX-License-Identifier: Apache-2.0
"""Consistency models, and clocks of workers that come and go."""

import pytest

from weir.host_agent.parameter_server.clocks import Clocks, Consistency, parse_consistency


def test_models() -> None:
    assert [str(parse_consistency(text)) for text in ("sync", "ssp:4", "async")] == ["sync", "ssp:4", "async"]
    assert not Consistency(0).allows(1, 0)
    assert Consistency(0).allows(1, 1)
    assert Consistency(4).allows(7, 3)
    assert not Consistency(4).allows(8, 3)
    assert Consistency(None).allows(10**6, 0)


@pytest.mark.parametrize("text", ["", "ssp", "ssp:", "ssp:-1", "Sync", "ssp:1.5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="sync, ssp:S"):
        parse_consistency(text)


def test_the_floor_is_the_slowest_and_never_falls() -> None:
    clocks = Clocks()
    clocks.join(0)
    clocks.join(1)
    for _ in range(3):
        clocks.tick(0)
    assert clocks.floor == 0
    clocks.tick(1)
    assert clocks.floor == 1
    assert clocks.join(2) == 1
    clocks.leave(1)
    clocks.leave(2)
    assert clocks.floor == 3
    clocks.leave(0)
    assert clocks.floor == 3
    assert clocks.join(1) == 3


def test_a_worker_joins_once() -> None:
    clocks = Clocks()
    clocks.join(1)
    with pytest.raises(ValueError, match="worker 1"):
        clocks.join(1)
