# SPDX-License-Identifier: Apache-2.0
"""Sums that take piggybacks along: both come out as if each had been reduced by itself."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.torch.parameter_server.rounds import (
    Piggyback,
    PiggybackCommunicator,
    PiggybackQueue,
    PiggybackSteps,
    Words,
    runs_of,
)
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import SLOT_LANES, Op

MEMBERS = 4


def said_by(lanes: Lanes, senders: np.ndarray, *, changes: bool = False) -> list[Words]:
    """Return words as a piggyback. senders: of each SLOT_LANES of them."""
    return [
        Words(lanes[first * SLOT_LANES : last * SLOT_LANES], sender, changes)
        for first, last, sender in runs_of(senders)
    ]


@settings(deadline=None, max_examples=examples(25))
@given(
    st.integers(0, 40),
    st.lists(st.integers(1, 12), max_size=3),
    st.sampled_from([32, 64, 128, 256]),
    st.sampled_from([1, 8, 256]),
    st.integers(0, 2**32 - 1),
)
def test_piggybacks_and_sums_do_not_touch_each_other(
    blocks: int, piggybacks: list[int], block: int, slots: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = random.integers(0, 2**32, (MEMBERS, blocks * block), dtype=np.uint32)
    audience = random.integers(0, MEMBERS, blocks).astype(np.int16)
    senders = [random.integers(0, MEMBERS, size).astype(np.int16) for size in piggybacks]
    words = [random.integers(0, 2**32, size * SLOT_LANES, dtype=np.uint32) for size in piggybacks]
    total = vectors.sum(axis=0, dtype=np.uint32)
    group = InMemoryGroup(MEMBERS)

    def member(communicator: Communicator) -> None:
        rank, piggyback = communicator.rank, PiggybackCommunicator(communicator, slots, MEMBERS)
        own = [
            np.where(np.repeat(of == rank, SLOT_LANES), said, np.uint32(0))
            for of, said in zip(senders, words, strict=True)
        ]
        piggyback.piggybacks = [said_by(lanes, of) for lanes, of in zip(own, senders, strict=True)]
        lanes = vectors[rank].copy()
        piggyback.reduce_lanes(lanes, Op.ADD, block, audience=audience)
        assert not piggyback.piggybacks
        for index in np.flatnonzero(audience == rank):
            place = slice(index * block, (index + 1) * block)
            np.testing.assert_array_equal(lanes[place], total[place])
        for heard, said in zip(own, words, strict=True):
            np.testing.assert_array_equal(heard, said)

    group.run([lambda c=c: member(c) for c in group.communicators])


class Recorder(Communicator):
    """Keeps the lanes that it is to reduce, and who wants them."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.reduced: list[Lanes] = []
        self.wanted: list[Audience | None] = []

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> Any:
        self.reduced.append(lanes)
        self.wanted.append(audience)


def test_words_that_change_others_may_be_of_any_length() -> None:
    said = [np.arange(1, length + 1, dtype=np.uint32) for length in (1, 300, 512)]
    group = InMemoryGroup(2)

    def member(communicator: Communicator) -> None:
        piggyback, rank = PiggybackCommunicator(communicator, 8, 1), communicator.rank
        known = [words.copy() if rank == 1 else np.full(words.size, 7, np.uint32) for words in said]
        piggyback.reduce_piggybacks([[Words(lanes, 1, changes=True) for lanes in known]])
        for lanes, words in zip(known, said, strict=True):
            np.testing.assert_array_equal(lanes, words if rank == 1 else words ^ 7)

    group.run([lambda c=c: member(c) for c in group.communicators])


def test_rounds_take_no_fresh_memory() -> None:
    """Piggybacks beside a sum are in memory that is kept; a single one by itself stays where it is."""
    group = Recorder()
    piggyback = PiggybackCommunicator(group, 256, 1)
    one = [Words(np.zeros(8 * SLOT_LANES, np.uint32), 0)]
    for blocks in (8, 4):
        piggyback.piggybacks = [one]
        piggyback.reduce_lanes(
            np.zeros(blocks * SLOT_LANES, np.uint32), Op.ADD, audience=np.zeros(blocks, np.int16)
        )
    piggyback.reduce_piggybacks([one])
    first, second, alone = group.reduced
    assert np.shares_memory(first, second)
    assert alone is one[0].lanes


@pytest.mark.parametrize(("slots", "run"), [(512, 32), (128, 32), (64, 16), (1, 1)])
def test_packets_of_one_kind_follow_one_another(slots: int, run: int) -> None:
    """So that the kernel takes many of them at once; fewer where few slots must hold both kinds."""
    group = Recorder()
    piggyback = PiggybackCommunicator(group, slots, 1)
    piggyback.piggybacks = [[Words(np.zeros(128 * SLOT_LANES, np.uint32), 0)]]
    piggyback.reduce_lanes(np.zeros(128 * SLOT_LANES, np.uint32), Op.ADD, audience=np.ones(128, np.int16))
    (wanted,) = group.wanted
    assert wanted is not None
    changes = np.flatnonzero(np.diff(wanted)) + 1
    assert set(np.diff([0, *changes, wanted.size]).tolist()) == {run}


def test_generators_go_on_with_what_the_others_said_and_wait_where_that_failed() -> None:
    heard: list[int] = []

    def steps(length: int) -> PiggybackSteps:
        for _ in range(length):
            words = Words(np.zeros(SLOT_LANES, np.uint32), 0)
            yield [words]
            heard.append(int(words.lanes[0]))

    piggybacks = PiggybackQueue()
    piggybacks.add(steps(2))
    piggybacks.add(steps(1))

    def fail(_piggybacks: object) -> None:
        raise OSError

    def reduce(number: int, waiting: list[Piggyback]) -> int:
        for (words,) in waiting:
            words.lanes[:] = number
        return len(waiting)

    with pytest.raises(OSError):
        piggybacks.take_along(fail)
    assert piggybacks.take_along(lambda waiting: reduce(7, list(waiting))) == 2
    assert piggybacks.take_along(lambda waiting: reduce(8, list(waiting))) == 1
    assert not piggybacks
    assert heard == [7, 7, 8]
