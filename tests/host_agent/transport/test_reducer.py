# SPDX-License-Identifier: Apache-2.0
"""The reducer: what users of the network call, also when things go wrong."""

import contextlib
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from softp4.native.ring import SWITCH, ShmPort
from tests.harness.effort import effort
from tests.host_agent.transport.answers import result
from tests.host_agent.transport.racks import on_every_worker, shm_rack, udp_rack
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Addresses, Framer
from weir.host_agent.transport.links import Aborted, DisagreementError, ShmLink, TransportTimeout, UdpLink
from weir.host_agent.transport.ports import Port
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.report import Account
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.simulator.entries import AGGREGATION, host_addresses
from weir.wire.definition import Op

US = host_addresses(1)
# Shared memory loses nothing; on a busy machine the usual timers would send some packets twice.
NO_REPEATS = dict.fromkeys(("initial_rto", "min_rto", "max_rto", "min_probe"), 60.0)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[ShmPort]:
    """Yield the switch's end of port 1; the test plays the switch."""
    with ShmPort(tmp_path, 1, SWITCH) as port:
        yield port


@pytest.fixture
def reducer(tmp_path: Path, port: ShmPort) -> Iterator[Reducer]:
    """Yield the only worker of a job, on that port."""
    with Reducer(ShmLink(tmp_path, 1, US), TransportConfig(5, 0, 1, slots=1)) as reducer:
        yield reducer


def answer_one(port: ShmPort) -> Packet:
    """Take a contribution, answer it, and return it."""
    frame = port.recv(10)
    assert frame is not None
    return answer(port, frame)


def answer(port: ShmPort, frame: bytes) -> Packet:
    packet = Packet.decode(frame[42:])
    assert port.send(Framer(Addresses(AGGREGATION, US.host)).wrap(result(packet).encode(), 0))
    return packet


def test_operators_block_sizes_shapes_and_barriers_one_after_the_other(tmp_path: Path) -> None:
    def work(r: Reducer) -> list[np.ndarray]:
        w = r.config.worker + 1
        a, b, c = np.full(1000, w, np.uint32), np.full((3, 70), w, np.int32), np.array([1 << w], np.uint32)
        r.reduce_blocks(a, Op.ADD)
        r.barrier()
        r.reduce_blocks(b, Op.MAX, 32)
        r.reduce_blocks(np.empty(0, np.uint32), Op.ADD)
        r.reduce_blocks(c, Op.OR, 64)
        return [a, b, c]

    with shm_rack(tmp_path, workers=3, timers=NO_REPEATS) as rack:
        for a, b, c in on_every_worker(rack, work):
            assert (a == 6).all()
            assert (b == 3).all()
            assert c[0] == 0b1110
        stats = rack[0].stats
    assert stats.reduces == 5
    assert stats.lanes == 1000 + 210 + 1
    assert stats.entered == stats.included == Account(1211, 1000 + 210 + 2)
    headers, column = 14 + 20 + 8 + 28, 8
    assert stats.bytes_up == sum(
        (
            4 * (headers + column + 1024),
            2 * (headers + column),  # the barrier, and the reduce of nothing
            headers + 8 * column + 7 * 128,
            headers + 4 * column + 256,
        )
    )
    assert stats.seconds > 0


def test_a_second_caller_is_refused_and_harms_nothing(reducer: Reducer, port: ShmPort) -> None:
    thread = threading.Thread(target=reducer.barrier)
    thread.start()
    frame = port.recv(10)
    assert frame is not None  # it has begun
    with pytest.raises(RuntimeError, match="OperationQueue"):
        reducer.barrier()
    answer(port, frame)
    thread.join()
    assert reducer.stats.reduces == 1


def test_a_worker_that_never_comes_is_a_timeout_and_the_end_of_the_reducer(tmp_path: Path) -> None:
    with shm_rack(tmp_path, workers=2, timeout_s=0.3) as rack:
        on_every_worker(rack, lambda r: r.reduce_blocks(np.ones(5000, np.uint32), Op.ADD))
        with pytest.raises(TransportTimeout, match=r"worker 1 of 2 .* or another worker never began"):
            rack[1].reduce_blocks(np.ones(5000, np.uint32), Op.ADD)
        with pytest.raises(Aborted, match=r"an earlier reduce of job .* failed: TransportTimeout"):
            rack[1].barrier()


def test_a_worker_that_stops_in_mid_reduce_is_called_missing(tmp_path: Path, port: ShmPort) -> None:
    config = TransportConfig(5, 0, 2, slots=1)
    with Reducer(ShmLink(tmp_path, 1, US), config, timeout_s=0.3) as reducer:
        thread = threading.Thread(target=answer_one, args=(port,))
        thread.start()
        with pytest.raises(TransportTimeout, match=r"1 results applied, .* a worker is missing"):
            reducer.reduce_blocks(np.ones(5000, np.uint32), Op.ADD)
        thread.join()


LONG, SHORT, NONE = (
    np.arange(1, 70_001, dtype=np.uint32),
    np.arange(1, 6, dtype=np.uint32),
    np.empty(0, np.uint32),
)
BASE = (SHORT, Op.ADD, 32, 7)  # lanes, operator, block, operation


@pytest.mark.parametrize(
    "other",
    [
        (SHORT[:3], Op.ADD, 32, 7),
        (SHORT, Op.MAX, 32, 7),
        (SHORT, Op.ADD, 256, 7),
        (SHORT, Op.ADD, 32, 8),
        (LONG, Op.ADD, 256, 7),  # in many slots, of which the others use one
        (LONG[:1000], Op.OR, 64, 9),
        (NONE, Op.ADD, 256, 7),
        (0 * SHORT, Op.ADD, 64, 7),  # all zero: sends no lanes
    ],
    ids=lambda other: f"{other[0].size} {other[1].name} {other[2]} {other[3]}",
)
@pytest.mark.parametrize("odd", effort([2], [0, 2]))
@pytest.mark.parametrize("fill", effort([False], [False, True]))
def test_workers_that_disagree_all_hear_of_it(
    tmp_path: Path, other: tuple[np.ndarray, Op, int, int], odd: int, fill: bool
) -> None:
    def work(r: Reducer) -> None:
        r.barrier()
        lanes, op, block, r.operation = other if r.config.worker == odd else BASE
        mine = lanes.copy()
        with pytest.raises(DisagreementError, match="in different operations"):
            r.reduce_blocks(mine, op, block)
        np.testing.assert_array_equal(mine, lanes)  # nothing of a result was applied
        with pytest.raises(Aborted, match="DisagreementError"):
            r.barrier()

    with shm_rack(tmp_path, workers=3, timeout_s=20, timers={"fill": fill}) as rack:
        on_every_worker(rack, work)


def test_workers_hear_of_a_disagreement_over_udp() -> None:
    def work(r: Reducer) -> None:
        with pytest.raises(DisagreementError):
            r.reduce_blocks(LONG.copy() if r.config.worker == 1 else SHORT.copy(), Op.ADD)

    with udp_rack(workers=3) as rack:
        on_every_worker(rack, work)


@pytest.mark.parametrize("keep", [True, False])
def test_who_is_done_repeats_its_contributions_between_two_reduces(keep: bool) -> None:
    """On the queue, more and more rarely: a switch may have forgotten a result that others lack."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        switch.settimeout(20)
        own = Port(UdpLink(("127.0.0.1", 0), switch.getsockname()), "port")
        timers = {"initial_rto": 0.05, "min_rto": 0.05, "max_rto": 0.05}
        config = TransportConfig(1, 0, 2, slots=2, keep=keep, **timers)
        with Reducer(own.link, config, timeout_s=20) as reducer:
            own.operations.at_rest = reducer.rest
            done = own.operations.submit(lambda: reducer.reduce_blocks(np.ones(300, np.uint32), Op.ADD))
            sent: dict[int, bytes] = {}
            while not done.done():
                with contextlib.suppress(TimeoutError):
                    switch.settimeout(0.2)
                    payload, worker = switch.recvfrom(2000)
                    packet = Packet.decode(payload)
                    if packet.groups:
                        sent[packet.slot] = payload
                        switch.sendto(result(packet, included=0b11).encode(), worker)
            done.result()
            switch.settimeout(20 if keep else 0.5)
            again: list[bytes] = []
            with contextlib.suppress(TimeoutError):
                while len(again) < 6:
                    again.append(switch.recv(2000))
            lanes = {Packet.decode(one).slot: Packet.decode(one).groups for one in again}
            wanted = {slot: Packet.decode(payload).groups for slot, payload in sent.items()}
            assert lanes == (wanted if keep else {})
            assert own.operations.submit(lambda: 7).result(20) == 7
        own.release()


def test_what_was_reduced_is_not_kept_alive(reducer: Reducer, port: ShmPort) -> None:
    lanes = np.ones(256, np.uint32)
    gone = weakref.ref(lanes)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer_one, port)
        assert reducer.reduce_blocks(lanes, Op.ADD).lanes == 256
        answered.result()
    del lanes
    assert gone() is None


def test_abort_gives_its_reason_now_and_later(reducer: Reducer) -> None:
    threading.Timer(0.1, reducer.abort, ("worker 3 was lost",)).start()
    for _ in range(2):
        with pytest.raises(Aborted, match="worker 3 was lost"):
            reducer.barrier()


def test_close_ends_a_reduce_of_another_thread(reducer: Reducer, port: ShmPort) -> None:
    ended = []

    def wait() -> None:
        with pytest.raises(Aborted, match="closed"):
            reducer.barrier()
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    assert port.recv(10) is not None  # it has begun
    reducer.close()
    thread.join()
    assert ended


def test_a_bad_argument_harms_nothing(reducer: Reducer, port: ShmPort) -> None:
    with pytest.raises(ValueError, match="lanes, not 100"):
        reducer.reduce_blocks(np.ones(3, np.uint32), Op.ADD, 100)
    thread = threading.Thread(target=answer_one, args=(port,))
    thread.start()
    reducer.barrier()
    thread.join()
