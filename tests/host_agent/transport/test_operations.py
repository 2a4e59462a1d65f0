# SPDX-License-Identifier: Apache-2.0
"""Operations of several threads, and of several groups on one port: order, failures, the end."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softp4.native.ring import SWITCH, ShmPort
from tests.host_agent.transport.answers import result
from weir.host_agent.transport.callbacks import EndlessWaitError, Outcome
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Addresses, Framer
from weir.host_agent.transport.links import Aborted, ShmLink
from weir.host_agent.transport.operations import OperationQueue, QueueClosedError
from weir.host_agent.transport.ports import Port
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.report import ReduceReport, Verdict
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig
from weir.simulator.entries import AGGREGATION, host_addresses
from weir.wire.definition import Op

US = host_addresses(1)


@pytest.fixture
def operations() -> Iterator[OperationQueue]:
    operations = OperationQueue("test")
    yield operations
    operations.close()


class Gate:
    """An operation that runs until it is let through."""

    def __init__(self) -> None:
        self._begun, self._open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self._begun.set()
        assert self._open.wait(60)

    def until_running(self) -> None:
        assert self._begun.wait(60)

    def open(self) -> None:
        self._open.set()


class TestQueue:
    def test_operations_of_all_threads_run_in_the_order_of_submission(
        self, operations: OperationQueue
    ) -> None:
        gate, done = Gate(), []
        operations.submit(gate)
        for number in range(20):
            thread = threading.Thread(target=operations.submit, args=(lambda n=number: done.append(n),))
            thread.start()
            thread.join()
        last = operations.submit(lambda: done.append("last"))
        gate.open()
        last.result()
        assert done == [*range(20), "last"]

    def test_what_yields_is_passed_by_its_own_group_alone_and_never_past_another_groups(
        self, operations: OperationQueue
    ) -> None:
        gate, done = Gate(), []
        ours, others = object(), object()

        def long() -> None:
            gate()
            assert operations.passing(others) == 0
            while operations.passing(ours):
                operations.pass_first(ours)
            done.append("long")

        def submit(name: str, group: object, yields: bool = False) -> None:
            operations.submit(lambda: done.append(name), group=group, yields=yields)

        operations.submit(long, group=ours, yields=True)
        gate.until_running()
        submit("long, too", ours, yields=True)
        submit("first", ours)
        submit("second", ours)
        submit("other", others)
        submit("third", ours)
        gate.open()
        operations.close()
        assert done == ["first", "second", "long", "long, too", "other", "third"]

    def test_what_an_operation_raises_is_its_own_outcome_alone(self, operations: OperationQueue) -> None:
        failed, left = operations.submit(lambda: 1 // 0), operations.submit(lambda: sys.exit(3))
        assert operations.submit(lambda: 7).result() == 7
        with pytest.raises(ZeroDivisionError):
            failed.result()
        with pytest.raises(SystemExit):
            left.result()

    def test_callbacks_submit_and_wait_and_their_operations_come_before_later_ones(
        self, operations: OperationQueue
    ) -> None:
        gate, done = Gate(), []
        inner = {"first": ["a", "b"], "a": ["a.1"], "a.1": ["a.1.1"], "second": ["c"], "c": ["c.1"]}

        def submit(name: str) -> Outcome[None]:
            outcome = operations.submit(lambda: done.append(name))
            outcome.add_done_callback(lambda _: [submit(one).result(60) for one in inner.get(name, [])])
            return outcome

        operations.submit(gate)
        submit("first")
        submit("second")
        last = submit("last")
        gate.open()
        last.result(60)
        assert done == ["first", "a", "a.1", "a.1.1", "b", "second", "c", "c.1", "last"]

    def test_what_a_callback_submits_and_does_not_wait_for_comes_before_later_ones_too(
        self, operations: OperationQueue
    ) -> None:
        gate, done = Gate(), []
        operations.submit(gate).add_done_callback(
            lambda _: [operations.submit(lambda n=n: done.append(n)) for n in range(3)]
        )
        gate.until_running()
        last = operations.submit(lambda: done.append("last"))
        gate.open()
        last.result(60)
        assert done == [0, 1, 2, "last"]

    def test_a_callback_that_waits_for_a_later_operation_lets_it_run(
        self, operations: OperationQueue
    ) -> None:
        gate, found = Gate(), []
        first = operations.submit(gate)
        outer = operations.submit(lambda: 1)
        inner = operations.submit(lambda: 2)

        def wait_deep(_outcome: object) -> None:
            operations.submit(lambda: 0).add_done_callback(lambda _: found.append(inner.result(60)))

        outer.add_done_callback(wait_deep)
        first.add_done_callback(lambda _: found.append(outer.result(60)))
        gate.open()
        assert inner.result(60) == 2
        operations.close()
        assert sorted(found) == [1, 2]

    def test_callbacks_that_block_do_not_stop_the_others(
        self, operations: OperationQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("weir.host_agent.transport.callbacks.BLOCKED_S", 0.05)
        gate, release, late = Gate(), threading.Event(), Future[int]()

        def block(_outcome: object) -> None:
            operations.submit(lambda: None).add_done_callback(lambda _: release.wait(60))
            release.wait(60)
            late.set_result(operations.submit(lambda: 3).result(60))

        operations.submit(gate).add_done_callback(block)
        later = [operations.submit(lambda: 7) for _ in range(3)]
        gate.open()
        assert [outcome.result(60) for outcome in later] == [7, 7, 7]
        release.set()
        assert operations.submit(lambda: 8).result(60) == 8
        assert late.result(60) == 3
        operations.close()
        assert "neither ended nor issued a collective" in caplog.text

    def test_a_wait_in_an_operation_for_one_behind_it_raises(self, operations: OperationQueue) -> None:
        with pytest.raises(EndlessWaitError, match="queued behind it: that would never end"):
            operations.submit(lambda: operations.submit(lambda: 7).result()).result(60)
        assert operations.submit(lambda: 8).result(60) == 8

    def test_more_blocked_callbacks_than_there_can_be_threads_are_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("weir.host_agent.transport.task_threads.MOST_THREADS", 3)
        operations, refused, over = OperationQueue("test"), [], threading.Event()

        def nest() -> None:
            added = threading.Event()
            try:
                outcome = operations.submit(lambda: added.wait(60))
            except EndlessWaitError as error:
                refused.append(str(error))
                over.set()
            else:
                outcome.add_done_callback(lambda _: nest())
                added.set()
                outcome.result(60)

        nest()
        assert over.wait(60)
        operations.close()
        (words,) = refused
        assert "3 threads are the maximum" in words

    def test_a_callback_may_close_the_queue_while_what_it_submitted_runs(
        self, operations: OperationQueue
    ) -> None:
        gate, closed, done = Gate(), [], []

        def close(_outcome: object) -> None:
            operations.submit(gate)
            gate.until_running()
            threading.Timer(0.05, gate.open).start()
            operations.submit(lambda: done.append(1))
            operations.close()
            closed.append(True)

        operations.submit(lambda: None).add_done_callback(close)
        queued = operations.submit(lambda: 7)
        assert queued.result(60) == 7
        operations.close()
        assert (closed, done) == ([True], [1])

    def test_an_operation_that_passed_may_have_callbacks_that_wait(self, operations: OperationQueue) -> None:
        gate, found, ours = Gate(), [], object()

        def long() -> None:
            gate()
            operations.pass_first(ours)

        operations.submit(long, group=ours, yields=True)
        gate.until_running()
        operations.submit(lambda: None, group=ours).add_done_callback(
            lambda _: found.append(operations.submit(lambda: 7, group=ours).result(60))
        )
        gate.open()
        while not found:
            operations.submit(lambda: None).result(60)
        assert found == [7]

    def test_what_waits_behind_callbacks_that_are_given_up_from_without_inwards_runs(
        self, operations: OperationQueue
    ) -> None:
        start, inner, outer_waits, found = Gate(), Gate(), threading.Event(), []
        first, last = operations.submit(start), operations.submit(lambda: 9)

        def wait_within(_outcome: object) -> None:
            operations.submit(inner)
            found.append(operations.submit(lambda: 7))
            assert outer_waits.wait(60)
            time.sleep(0.1)  # in which the outer callback begins to wait
            threading.Timer(0.1, inner.open).start()
            last.result(60)

        def wait(_outcome: object) -> None:
            operations.submit(lambda: None).add_done_callback(wait_within)
            inner.until_running()
            outer_waits.set()
            last.result(60)

        first.add_done_callback(wait)
        start.open()
        assert last.result(60) == 9
        assert found[0].result(60) == 7

    def test_a_callback_that_would_end_its_thread_does_not_end_the_queue(
        self, operations: OperationQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        operations.submit(gate).add_done_callback(lambda _: sys.exit(3))
        gate.open()
        assert operations.submit(lambda: 7).result(60) == 7
        assert "SystemExit: 3" in caplog.text

    @pytest.mark.parametrize("where", ["here", "outside"])
    def test_callbacks_that_wait_for_another_queue_keep_their_place(
        self, operations: OperationQueue, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        """However long that takes, and whether they or the program have submitted there."""
        monkeypatch.setattr("weir.host_agent.transport.callbacks.BLOCKED_S", 0.05)
        gate, slow, other, done = Gate(), Gate(), OperationQueue("other"), []
        outside = other.submit(slow) if where == "outside" else None

        def go_on(_outcome: object) -> None:
            (outside or other.submit(slow)).result(60)
            operations.submit(lambda: done.append("callback's"))

        operations.submit(gate).add_done_callback(go_on)
        last = operations.submit(lambda: done.append("last"))
        gate.open()
        slow.until_running()
        threading.Timer(0.3, slow.open).start()
        last.result(60)
        other.close()
        assert done == ["callback's", "last"]

    def test_callbacks_of_two_queues_that_wait_for_each_other_let_both_go_on(
        self, operations: OperationQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("weir.host_agent.transport.callbacks.BLOCKED_S", 0.05)
        gate, other, found = Gate(), OperationQueue("other"), []
        both = threading.Barrier(2)

        def wait_for(queue: OperationQueue) -> None:
            both.wait(60)
            found.append(queue.submit(lambda: 7).result(60))

        operations.submit(gate).add_done_callback(lambda _: wait_for(other))
        other.submit(gate).add_done_callback(lambda _: wait_for(operations))
        gate.open()
        for queue in (operations, other):
            queue.submit(lambda: None).result(60)
        other.close()
        operations.close()
        assert found == [7, 7]

    def test_closing_ends_all_threads(self) -> None:
        operations = OperationQueue("test-of-threads")
        for _ in range(20):
            operations.submit(lambda: None).add_done_callback(
                lambda _: operations.submit(lambda: operations.submit(lambda: 7)).result(60)
            )
        assert operations.submit(lambda: 8).result(60) == 8
        operations.close()
        assert [thread.name for thread in threading.enumerate() if thread.name == "test-of-threads"] == []

    def test_closing_runs_what_is_queued_and_takes_no_more(self, operations: OperationQueue) -> None:
        gate = Gate()
        operations.submit(gate)
        queued = operations.submit(lambda: 7)
        gate.until_running()
        closing = threading.Thread(target=operations.close)
        closing.start()
        gate.open()
        closing.join()
        assert queued.result(timeout=0) == 7
        with pytest.raises(QueueClosedError):
            operations.submit(lambda: 8)

    def test_an_operation_may_close_the_queue_it_runs_in(self, operations: OperationQueue) -> None:
        operations.submit(operations.close).result(60)
        with pytest.raises(QueueClosedError):
            operations.submit(lambda: 8)

    def test_an_outcome_that_was_cancelled_is_not_run(self, operations: OperationQueue) -> None:
        gate, done = Gate(), []
        operations.submit(gate)
        unwanted = operations.submit(lambda: done.append(1))
        assert unwanted.cancel()
        gate.open()
        operations.submit(lambda: done.append(2)).result()
        assert done == [2]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[ShmPort]:
    """Yield the switch's end of port 1; the test plays the switch."""
    with ShmPort(tmp_path, 1, SWITCH) as port:
        yield port


class Group:
    """One of several groups of this process on the port, alone in its job."""

    def __init__(self, directory: Path, job: int, slots: int = 1) -> None:
        self.port = Port(ShmLink(directory, 1, US), f"group-{job}")
        self.reducer = Reducer(self.port.link, TransportConfig(job, 0, 1, slots=slots))
        self.operations = self.port.operations

    def barrier(self) -> Future[ReduceReport]:
        return self.operations.submit(self.reducer.barrier)

    def end(self) -> None:
        self.reducer.close()
        self.port.release()


@pytest.fixture
def groups(tmp_path: Path, port: ShmPort) -> Iterator[list[Group]]:
    made = [Group(tmp_path, job) for job in (5, 6)]
    yield made
    for group in made:
        group.end()


def contribution(port: ShmPort, job: int | None = None) -> Packet:
    """Return the next contribution, of this job if it matters."""
    while True:
        frame = port.recv(10)
        assert frame is not None
        packet = Packet.decode(frame[42:])
        if job is None or packet.job == job:
            return packet


def answer(port: ShmPort, packet: Packet) -> None:
    while not port.send(Framer(Addresses(AGGREGATION, US.host)).wrap(result(packet).encode(), 0)):
        pass


class TestSharedPort:
    def test_a_groups_reductions_run_in_the_order_of_submission(
        self, groups: list[Group], port: ShmPort
    ) -> None:
        group, order = groups[0], [3, 1, 2]
        outcomes = [
            group.operations.submit(lambda n=n: group.reducer.reduce_blocks(np.full(8, n, np.uint32), Op.ADD))
            for n in order
        ]
        served: dict[int, int] = {}  # a packet may come again while the switch is silent
        while len(served) < len(order):
            packet = contribution(port)
            answer(port, packet)
            if packet.groups:  # or it asks only whether the switch is there
                served[packet.round] = packet.groups[0][0]
        wait(outcomes)
        assert list(served.values()) == order

    @pytest.mark.parametrize("waiting", [0, 1])
    def test_a_group_reduces_while_another_waits(
        self, groups: list[Group], port: ShmPort, waiting: int
    ) -> None:
        """Whichever of them has begun to receive from the port."""
        slow, fast = groups[waiting], groups[1 - waiting]
        stuck = slow.barrier()
        asked = contribution(port, slow.reducer.config.job)
        for _ in range(20):
            outcome = fast.barrier()
            while not outcome.done():
                if (frame := port.recv(0.01)) is not None:
                    packet = Packet.decode(frame[42:])
                    if packet.job == fast.reducer.config.job:
                        answer(port, packet)
            assert outcome.result().rounds == 1
        assert not stuck.done()
        answer(port, asked)
        assert stuck.result(10).rounds == 1

    def test_each_gets_its_own_results_in_whatever_order_they_come(
        self, tmp_path: Path, port: ShmPort
    ) -> None:
        generator = random.Random(1)
        made = {job: Group(tmp_path, job, slots=4) for job in range(10, 15)}
        vectors = {
            (job, number): np.random.default_rng([job, number]).integers(1, 2**32, 3000, dtype=np.uint32)
            for job in made
            for number in range(8)
        }
        lanes = {key: vector.copy() for key, vector in vectors.items()}
        outcomes = [
            made[job].operations.submit(
                lambda j=job, n=number: made[j].reducer.reduce_blocks(lanes[j, n], Op.ADD)
            )
            for job, number in vectors
        ]
        held: list[Packet] = []
        while not all(outcome.done() for outcome in outcomes):
            while (frame := port.recv(0.001)) is not None:
                packet = Packet.decode(frame[42:])
                held += [packet] if packet.groups else []  # or it asks what became of one
            generator.shuffle(held)
            for packet in held[: generator.randrange(1, 9)]:
                answer(port, packet)
                held.remove(packet)
        for outcome in outcomes:
            assert not outcome.result().refused.keys() - {Verdict.WRONG_JOB}
        for key, vector in vectors.items():
            np.testing.assert_array_equal(lanes[key], vector)
        for group in made.values():
            group.end()

    def test_what_is_no_groups_is_counted_by_who_receives(self, groups: list[Group], port: ShmPort) -> None:
        outcome = groups[0].barrier()
        packet = contribution(port)
        answer(port, replace(packet, job=77))
        answer(port, replace(packet, job=groups[1].reducer.config.job))  # which reduces nothing now
        answer(port, packet)
        assert outcome.result(10).refused == {Verdict.WRONG_JOB: 2}

    def test_an_abort_ends_the_operations_of_one_group_and_lets_the_others_run(
        self, groups: list[Group], port: ShmPort
    ) -> None:
        first, second = groups
        doomed = [first.barrier() for _ in range(3)]
        contribution(port, first.reducer.config.job)  # it has begun
        spared = second.barrier()
        asked = contribution(port, second.reducer.config.job)
        first.reducer.abort("rank 3 was lost")
        for outcome in doomed:
            with pytest.raises(Aborted, match="rank 3 was lost"):
                outcome.result(10)
        answer(port, asked)
        assert spared.result(10).rounds == 1

    def test_a_group_that_ends_lets_another_receive(self, groups: list[Group], port: ShmPort) -> None:
        first, second = groups
        doomed = first.barrier()
        contribution(port, first.reducer.config.job)
        other = second.barrier()
        asked = contribution(port, second.reducer.config.job)
        first.end()
        with pytest.raises(Aborted, match="closed"):
            doomed.result(10)
        answer(port, asked)
        assert other.result(10).rounds == 1

    def test_the_last_group_that_ends_takes_the_port_along(
        self, groups: list[Group], port: ShmPort, tmp_path: Path
    ) -> None:
        first, second = groups
        first.end()
        second.end()
        with pytest.raises(QueueClosedError):
            second.barrier()
        again = Group(tmp_path, 7)
        outcome = again.barrier()
        answer(port, contribution(port, 7))
        assert outcome.result(10).rounds == 1
        again.end()

    def test_a_link_refuses_a_second_thread(self, groups: list[Group], port: ShmPort) -> None:
        group = groups[0]
        outcome = group.barrier()
        packet = contribution(port)
        other = SlotTransport(TransportConfig(8, 0, 1, slots=1))
        with pytest.raises(RuntimeError, match="in use by another thread"):
            group.port.link.drive(other, 1, threading.Event())
        answer(port, packet)
        assert outcome.result(10).rounds == 1
