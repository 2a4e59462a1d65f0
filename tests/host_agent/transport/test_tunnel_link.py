# SPDX-License-Identifier: Apache-2.0
"""Links to ports over IP: real sums through tunnels, over networks that lose, repeat, translate and forge."""

import contextlib
import random
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from softp4.dataplane.ports import PortLoop
from softp4.native.claims import port_key
from tests.host_agent.transport.answers import result
from tests.host_agent.transport.racks import on_every_worker, reducers, switch_with_job
from tests.host_agent.transport.test_links import CLASSES, THEM, US, classed, threading_drive
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Framer
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.tunnel_link import TunnelLink
from weir.simulator.entries import host_addresses
from weir.wire.definition import CE, ECT, Op, dscp

LOCAL = "127.0.0.1"
WORKERS = 3
LONG = 2_000_000
Address = tuple[str, int]


SECRET = bytes(range(32))


def key(port: int) -> bytes:
    return port_key(SECRET, port)


class Translator:
    """A router that translates addresses on the way to a hub: the hub sees a socket of the router's.

    ``move`` gives the host another one. With ``disorder``, datagrams are lost, repeated and overtaken. With
    ``old``, it repeats a datagram of any age behind each one, as those can who see them and forge addresses.
    """

    def __init__(
        self, hub: Address, disorder: random.Random | None = None, old: random.Random | None = None
    ) -> None:
        self._disorder, self._hub, self._host = disorder, hub, ("", 0)
        self._old = old
        self._seen: dict[bool, list[bytes]] = {True: [], False: []}
        self.repeated = 0
        self._inside = self._outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._inside.bind((LOCAL, 0))
        self.address: Address = self._inside.getsockname()
        self._ended = threading.Event()
        self.move()
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def move(self) -> None:
        fresh = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        fresh.connect(self._hub)
        self._outside = fresh

    def _forward(self) -> None:
        while not self._ended.is_set():
            outside = self._outside
            for end in select.select([self._inside, outside], [], [], 0.01)[0]:
                with contextlib.suppress(ConnectionRefusedError):
                    data, sender = end.recvfrom(1 << 16)
                    if end is self._inside:
                        self._host = sender
                    for each in self._disturb(data, end is self._inside):
                        if end is self._inside:
                            outside.send(each)
                        else:
                            self._inside.sendto(each, self._host)

    def _disturb(self, data: bytes, outward: bool) -> list[bytes]:
        if self._old:
            seen = self._seen[outward]
            seen.append(data)
            self.repeated += 1
            return [data, self._old.choice(seen)]
        return [data] * (self._disorder.choices((0, 1, 2), (3, 94, 3))[0] if self._disorder else 1)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._inside.close()
        self._outside.close()


@contextlib.contextmanager
def hub(workers: int = WORKERS, slots: int = 16) -> Iterator[tuple[int, PortLoop, list[Address]]]:
    """Yield a job, and the switch with the addresses where its workers claim their ports."""
    with (
        switch_with_job(workers, slots) as (switch, job),
        PortLoop() as loop,
        tempfile.NamedTemporaryFile("w") as secret,
    ):
        secret.write(SECRET.hex())
        secret.flush()
        places = []
        for port in range(1, workers + 1):
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                probe.bind(("::", 0))
                places.append(("", probe.getsockname()[1]))
            loop.add_claimed(port, places[-1], Path(secret.name))
        loop.set_switch(switch)
        loop.start()
        yield job, loop, [(LOCAL, port) for _, port in places]


@contextlib.contextmanager
def rack(job: int, places: Sequence[Address], slots: int = 16) -> Iterator[list[Reducer]]:
    """Yield the workers' reducers, over links to these places."""
    links = [
        TunnelLink(place, key(port), host_addresses(port), local_port=0)
        for port, place in enumerate(places, 1)
    ]
    made = reducers(job, links, slots)
    yield made
    for reducer in made:
        reducer.close()


def sum_up(
    made: Sequence[Reducer], length: int, meanwhile: Callable[[], None] | None = None, seed: int = 1
) -> list[ReduceReport]:
    """Reduce drawn vectors, check the sums, and return the workers' reports."""
    vectors = np.random.default_rng(seed).integers(0, 2**32, (len(made), length), dtype=np.uint32)
    expected = np.add.reduce(vectors, axis=0, dtype=np.uint32)
    other = threading.Timer(0.05, meanwhile) if meanwhile else None
    if other:
        other.start()
    reports = on_every_worker(made, lambda r: r.reduce_blocks(vectors[r.config.worker], Op.ADD))
    if other:
        other.join()
    for vector, report in zip(vectors, reports, strict=True):
        np.testing.assert_array_equal(vector, expected)
        assert report.entered == report.included
    return reports


@pytest.mark.parametrize("there", [LOCAL, "::1"])
def test_workers_sum_through_tunnels(there: str) -> None:
    if there == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with hub() as (job, loop, places), rack(job, [(there, port) for _, port in places]) as made:
        sum_up(made, 100_000)
        sum_up(made, 1)
        assert loop.statistics(1).rx_drops == 0
        assert loop.statistics(1).tx_batches > 0


def test_behind_a_router_that_translates_loses_and_repeats() -> None:
    with hub() as (job, _, places), contextlib.ExitStack() as routers:
        between = [Translator(place, random.Random(n)) for n, place in enumerate(places)]
        for router in between:
            routers.callback(router.close)
        with rack(job, [router.address for router in between]) as made:
            sum_up(made, 100_000)


def test_old_datagrams_that_come_again_change_nothing() -> None:
    """Of all kinds, in both directions, from the worker's own address: contributions, results, claims."""
    with hub() as (job, _, places), contextlib.ExitStack() as routers:
        between = [Translator(place, old=random.Random(n)) for n, place in enumerate(places)]
        for router in between:
            routers.callback(router.close)
        with rack(job, [router.address for router in between]) as made:
            reports = [report for seed in range(4) for report in sum_up(made, 50_000, seed=seed)]
        # Old contributions begin no round again, so nobody has to repeat one.
        assert (
            sum(report.retransmissions for report in reports) < sum(report.rounds for report in reports) / 20
        )
        assert min(router.repeated for router in between) > 1000


def test_a_host_that_moves_in_the_middle_goes_on() -> None:
    with hub() as (job, loop, places), contextlib.ExitStack() as routers:
        between = Translator(places[0])
        routers.callback(between.close)
        with rack(job, [between.address, *places[1:]]) as made:
            sum_up(made, LONG, between.move)
            assert loop.statistics(1).rx_drops > 0  # what came from the new address before it was claimed


def test_a_strangers_frames_are_not_added() -> None:
    with hub() as (job, loop, places), rack(job, places) as made:

        def forge() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                framer = Framer(host_addresses(1))
                for _ in range(100):
                    stranger.sendto(framer.wrap(b"\1" * 300, 0), places[0])

        sum_up(made, LONG, forge)
        assert loop.statistics(1).rx_drops == 100


def test_links_of_one_machine_have_udp_ports_of_their_own() -> None:
    """Inside the frames, too: the switch tells the links of a host apart by them."""
    with hub(1) as (_, _, places):
        link = TunnelLink(places[0], key(1), US)
        with pytest.raises(OSError, match="Address already in use"):
            TunnelLink(places[0], key(1), US)
        link.close()


def test_a_hub_that_does_not_answer_is_an_error_in_words() -> None:
    with hub() as (_, _, places), pytest.raises(ConnectionError, match="the controller's secret") as caught:
        TunnelLink(places[0], key(9), US, local_port=0, timeout_s=0.3)
    assert f"within 0.3 s at UDP {LOCAL}:{places[0][1]}: is it running" in str(caught.value)
    with pytest.raises(ConnectionError, match=r"\(Connection refused\): is it running"):
        TunnelLink(places[0], key(1), US, local_port=0, timeout_s=0.3)


def test_traffic_classes_are_those_inside_and_marks_outside_count() -> None:
    transport = classed()
    with hub(1) as (_, _, places):
        between = Translator(places[0])
        link = TunnelLink(between.address, key(1), US, local_port=0)
        between.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(between.address)
        switch.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        classes = []
        with threading_drive(link, transport):
            while len(classes) < len(CLASSES):
                frame, (told, *_), _, sender = switch.recvmsg(2048, socket.CMSG_SPACE(4))
                if len(frame) < 42:  # a claim
                    continue
                classes.append(told[2][0])
                assert classes[-1] == frame[15]
                switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp(3) << 2 | CE)
                answers = Framer(THEM)
                answer = result(Packet.decode(frame[42:])).encode()
                switch.sendto(answers.wrap(answer, dscp(3) << 2 | ECT), sender)
    assert classes == CLASSES
    assert transport.report().marked == 2
