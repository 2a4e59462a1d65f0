# SPDX-License-Identifier: Apache-2.0
"""News of an extension at the worst moments: between two steps of the thread that reduces."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weir
from tests.harness.ports import free_port
from tests.host_agent.torch import test_elastic_slots as slots_of_groups
from tests.host_agent.torch.worlds import World
from weir.host_agent.torch.elastic_slots import ElasticSlots
from weir.host_agent.transport import growth
from weir.host_agent.transport.growth import BASE_SLOTS, Growth
from weir.host_agent.transport.links import Aborted
from weir.wire.definition import Op

PAUSE_S = 0.1
LANES = np.zeros(1 << 14, np.uint32)  # many rounds of the base slots, but too few to extend at once


class Reductions:
    """A reducer that completes all, or none unless it is aborted."""

    timeout_s = 1.0
    round_trip = 0.0

    def __init__(self, *, completes: bool) -> None:
        self.config, self.stats = SimpleNamespace(job=1), SimpleNamespace(rto=0.0)
        self.made, self._completes, self._aborted = 0, completes, threading.Event()

    def reduce_blocks(self, *_arguments: Any) -> Any:
        if not self._completes:
            assert self._aborted.wait(10 * PAUSE_S), "waits for a worker that has left"
            raise Aborted("aborted")
        self.made += 1
        return object()

    def abort(self, _reason: str) -> None:
        self._aborted.set()

    def close(self) -> None:
        self._aborted.set()


class Joined:
    """An extension and its client, who notes what is said."""

    def __init__(self, *, completes: bool) -> None:
        self.client, self.reducer = self, Reductions(completes=completes)
        self.said: list[Any] = []

    def leave(self, reductions: int) -> None:
        self.said.append(reductions)

    def busy(self) -> None:
        self.said.append("busy")

    def close(self) -> None:
        self.said.append("closed")

    def leaves_at_exit(self) -> None:
        pass


class PausingLock:
    """A lock after whose release one thread rests, so that others run."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()
        if threading.current_thread().name == self._name:
            time.sleep(PAUSE_S)


def extended(*, completes: bool) -> tuple[ElasticSlots, Reductions, Any]:
    """Return slots that have done one reduction on an extension, their base and the extension."""
    base, extension = Reductions(completes=True), Joined(completes=completes)
    slots = ElasticSlots("rank 0", base, BASE_SLOTS, None, None, pytest.fail)  # type: ignore[arg-type]
    slots.stats = SimpleNamespace(plus=lambda *_: slots.stats)  # type: ignore[assignment]
    assert slots._growth is not None
    slots._extension = extension  # type: ignore[assignment]
    slots._growth.extend(time.monotonic())
    slots._growth.end(time.monotonic(), completed=True)
    return slots, base, extension


def test_a_reduction_that_begins_as_another_worker_leaves_is_made_on_the_base_slots() -> None:
    slots, base, extension = extended(completes=False)
    slots._lock = PausingLock("news")  # type: ignore[assignment]
    news = threading.Thread(target=slots._withdrawn, args=(extension, 1), name="news")
    news.start()
    time.sleep(PAUSE_S / 2)
    slots.reduce_in_slots(0, LANES, Op.ADD, 256)
    news.join()
    assert (base.made, extension.said) == (1, [1])


def test_a_reduction_is_made_where_it_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise this worker would ask for more slots at another reduction than the others."""
    slots, base, extension = extended(completes=True)
    wants_more = Growth.wants_more
    reclaim = threading.Thread(target=slots._reclaimed, args=(extension,))

    def slowly(self: Growth, lanes: int) -> bool:
        found = wants_more(self, lanes)
        if not reclaim.ident:
            reclaim.start()
            reclaim.join(PAUSE_S)
        return found

    monkeypatch.setattr(growth, "IDLE_S", 0.0)
    monkeypatch.setattr(Growth, "wants_more", slowly)
    slots.reduce_in_slots(0, LANES, Op.ADD, 256)
    reclaim.join()
    assert slots._growth is not None
    counted = slots._growth._rounds > 0
    assert counted == bool(base.made)


@pytest.mark.parametrize("at", [2, 3])
def test_an_extension_that_is_joined_as_the_group_ends_is_let_go_of(at: int) -> None:
    """Otherwise its heartbeats would keep the program from ending. at: the step of _extend that follows."""
    base, extension = Reductions(completes=True), Joined(completes=True)
    slots = ElasticSlots("rank 0", base, BASE_SLOTS, lambda: extension, lambda *_: extension, pytest.fail)  # type: ignore[arg-type,return-value]
    slots.stats = SimpleNamespace(plus=lambda *_: slots.stats)  # type: ignore[assignment]
    reduce = base.reduce_blocks

    def reduces(*arguments: Any) -> Any:
        report = reduce(*arguments)
        if base.made == 2:
            slots.abort("the group is over")
            if at == 2:
                raise Aborted("the group is over")
        return report

    base.reduce_blocks = reduces  # type: ignore[method-assign]
    with pytest.raises(Aborted, match="the group is over"):
        slots.reduce_in_slots(0, np.zeros(1 << 18, np.uint32), Op.ADD, 256)
    assert (base.made, extension.said) == (2, ["closed"])


@pytest.fixture(scope="module")
def over_tcp() -> Iterator[World]:
    """Yield two ranks whose controller tells them of their own jobs alone, as it does anybody over TCP."""

    class OverTcp(weir.LocalCluster):
        controller = f"127.0.0.1:{free_port()}"  # type: ignore[assignment]

    cluster = OverTcp(2)
    cluster.start()
    try:
        with World(2, cluster.environment) as world:
            yield world
    finally:
        cluster.stop()


def test_the_controller_is_asked_about_the_extension_by_its_member(over_tcp: World) -> None:
    over_tcp.run(slots_of_groups.make, "a")
    assert over_tcp.run(slots_of_groups.summed, "a") == [True] * 2
    assert over_tcp.run(slots_of_groups.extended, "a") == [True] * 2
    assert over_tcp.run(workers_that_are_known) == [[0, 1]] * 2
    over_tcp.run(slots_of_groups.close_all)


def workers_that_are_known() -> list[int]:
    """Return the workers that a watch over a reduction on the extension finds in the controller's answer."""
    stalls = slots_of_groups.groups["a"].connection._stalls
    return list(stalls._packets(stalls._status()))
