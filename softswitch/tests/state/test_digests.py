# SPDX-License-Identifier: Apache-2.0
"""Digests: what packets tell the control plane, and how much of it waits."""

from collections.abc import Iterator

import pytest

from softp4.state.digests import Digest
from softp4.switch import Switch
from tests.programs import program
from tests.state.test_meters import order

LEARN, PAIR = 4, 8


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("meters")) as made:
        yield made


def learned(who: int, port: int = 5) -> Digest:
    return Digest("learned_t", (who, port, 31))


def test_what_packets_tell_waits_in_order(switch: Switch) -> None:
    switch.process(5, order(LEARN, who=0xFFFFFFFFFFFF), 0)
    switch.process(0x1FF, order(LEARN, who=1), 0)
    switch.process(5, order(PAIR, index=0xABCD), 0)
    switch.process(5, order(0, who=7), 0)
    assert switch.digests.take() == [
        learned(0xFFFFFFFFFFFF),
        learned(1, 0x1FF),
        Digest("pair_t", (0xABCD, PAIR)),
    ]
    assert switch.digests.take() == []


def test_of_two_digests_of_a_packet_the_last_counts(switch: Switch) -> None:
    """As in BMv2, which remembers one to generate."""
    switch.process(5, order(LEARN | PAIR, index=2, who=3), 0)
    assert switch.digests.take() == [Digest("pair_t", (2, LEARN | PAIR))]


def test_what_waits_already_is_not_kept_twice(switch: Switch) -> None:
    for who in (1, 2, 1, 1, 3, 2):
        switch.process(5, order(LEARN, who=who), 0)
    assert switch.digests.take() == [learned(1), learned(2), learned(3)]
    switch.process(5, order(LEARN, who=1), 0)
    assert switch.digests.take() == [learned(1)], "fetched, it can be told again"
    assert switch.digests.lost() == 0


def test_what_finds_no_room_is_counted(switch: Switch) -> None:
    for who in range(4096 + 10):
        switch.process(5, order(LEARN, who=who), 0)
    switch.process(5, order(LEARN, who=17), 0)
    assert switch.digests.lost() == 10
    assert switch.digests.take() == [learned(who) for who in range(4096)]
    switch.process(5, order(LEARN, who=5000), 0)
    assert switch.digests.take() == [learned(5000)]


def test_a_program_without_digests_has_none() -> None:
    with Switch(program("traffic")) as switch:
        assert switch.digests.take() == []
        assert switch.digests.lost() == 0
