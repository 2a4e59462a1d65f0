# SPDX-License-Identifier: Apache-2.0
"""Threads of weights: messages are used in order, none behind a wrong one; threads end when told to."""

import threading
from collections.abc import Iterator

import pytest

from weir.host_agent.torch.weights.follower import Follower
from weir.host_agent.torch.weights.members import PacketThread
from weir.host_agent.weights.packets import Name
from weir.host_agent.weights.subscriber import Digest, Event


class Use:
    """Notes what it gets. wrong: a version that is not right; broken: one that raises."""

    def __init__(self, wrong: int = 0, broken: int = 0) -> None:
        self.seen: list[int] = []
        self._wrong, self._broken = wrong, broken
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, message: Event) -> bool:
        assert self.go_on.wait(10)
        self.seen.append(message.name.number)
        if message.name.number == self._broken:
            raise RuntimeError("a bug")
        return message.name.number != self._wrong


@pytest.fixture
def use() -> Use:
    return Use()


@pytest.fixture
def follower(use: Use) -> Iterator[Follower]:
    made = Follower("follower", use)
    made.start()
    yield made
    use.go_on.set()
    made.end()
    made.end()
    assert not made.is_alive()


def version(number: int) -> Event:
    return Digest(Name(number, snapshot=False), b"")


def wait_until_failed(follower: Follower) -> None:
    for _ in range(1000):
        if follower.failed:
            return
        threading.Event().wait(0.01)
    raise AssertionError("it has not failed")


def test_messages_are_used_in_order_and_only_a_few_wait(follower: Follower, use: Use) -> None:
    use.go_on.clear()
    given = 0
    while follower.has_room:
        follower.give(version(given := given + 1))
    assert given <= 3
    use.go_on.set()
    follower._waiting.join()
    assert use.seen == list(range(1, given + 1))
    assert follower.has_room


@pytest.mark.parametrize("use", [Use(wrong=2), Use(broken=2)], ids=["wrong", "broken"])
def test_none_is_used_behind_a_wrong_one_until_it_begins_again(follower: Follower, use: Use) -> None:
    for number in (1, 2, 3):
        follower.give(version(number))
    wait_until_failed(follower)
    assert not follower.has_room
    follower.reset()
    assert use.seen == [1, 2]
    follower.give(version(9))
    follower._waiting.join()
    assert use.seen == [1, 2, 9]


def test_a_reset_waits_for_the_one_in_use_and_forgets_the_others(follower: Follower, use: Use) -> None:
    use.go_on.clear()
    follower.give(version(1))
    follower.give(version(2))
    while follower._waiting.qsize() > 1:
        threading.Event().wait(0.01)
    threading.Timer(0.05, use.go_on.set).start()
    follower.reset()
    assert use.seen == [1]


def test_a_thread_that_is_about_to_wait_is_interrupted_once_it_does() -> None:
    entered, interrupted = threading.Event(), threading.Semaphore(0)

    def step() -> float:
        entered.set()
        for _ in range(2):  # the first interruption comes before the join that it is for
            assert interrupted.acquire(timeout=10)
        return 0.0

    thread = PacketThread("packets", step, lambda: None)
    thread.start()
    assert entered.wait(10)
    thread.end(interrupted.release)
    assert not thread.is_alive()
