# SPDX-License-Identifier: Apache-2.0
"""Links move a transport's packets for real, and say what is wrong when they cannot."""

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from softp4.native.ring import SWITCH, ShmPort
from tests.host_agent.transport.answers import answer_all, result
from tests.host_agent.transport.racks import on_every_worker, shm_rack, udp_rack
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Addresses, Endpoint, Framer
from weir.host_agent.transport.links import Aborted, ShmLink, TransportTimeout, UdpLink
from weir.host_agent.transport.report import Verdict
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig
from weir.netns import Namespace
from weir.simulator.entries import AGGREGATION, host_addresses
from weir.wire.definition import CE, ECT, NOT_ECT, Op, dscp

US = host_addresses(1)
THEM = Addresses(AGGREGATION, US.host)  # the same wire from the switch's end


def begun(workers: int = 1) -> SlotTransport:
    transport = SlotTransport(TransportConfig(job=9, worker=0, workers=workers, slots=8))
    transport.begin_reduction(Op.ADD, 256, np.arange(1, 513, dtype=np.uint32))
    return transport


def classed() -> SlotTransport:
    """As ``begun``, of the back layers, and one of its two packets may be shed: CLASSES."""
    transport = SlotTransport(TransportConfig(job=9, worker=0, workers=1, slots=8))
    service = ServiceClass(layer=3, budgets=np.array([256], np.uint64))
    transport.begin_reduction(Op.ADD, 256, np.arange(1, 513, dtype=np.uint32), service)
    return transport


_SO_NO_CHECK = 11
CLASSES = [dscp(3, 0) << 2 | NOT_ECT, dscp(3) << 2 | ECT]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[ShmPort]:
    """Yield the switch's end of port 1; the test plays the switch."""
    with ShmPort(tmp_path, 1, SWITCH) as port:
        yield port


class TestShm:
    def test_four_workers_through_the_real_switch(self, tmp_path: Path) -> None:
        vectors = np.random.default_rng(1).integers(0, 2**32, (4, 100_000), dtype=np.uint32)
        expected = np.add.reduce(vectors, axis=0, dtype=np.uint32)
        with shm_rack(tmp_path, workers=4) as rack:
            reports = on_every_worker(rack, lambda r: r.reduce_blocks(vectors[r.config.worker], Op.ADD))
        for vector, report in zip(vectors, reports, strict=True):
            np.testing.assert_array_equal(vector, expected)
            assert report.entered == report.included
            assert not report.refused

    def test_repeats_that_found_no_room_go_on_when_there_is_some(self, tmp_path: Path, port: ShmPort) -> None:
        """Not in the next period, which would begin with the first slot again."""
        link, slots = ShmLink(tmp_path, 1, US), 1024  # whose packets are longer than the port's memory
        hour = dict.fromkeys(("initial_rto", "min_rto", "max_rto"), 3600.0)
        transport = SlotTransport(TransportConfig(job=9, worker=0, workers=2, slots=slots, **hour))
        transport.begin_reduction(Op.ADD, 256, np.ones(slots * 256, np.uint32))
        answer_all(transport, time.monotonic_ns() - 3700 * 10**9)
        framer, seen, due = Framer(THEM), list[int](), link.rest(transport)
        while due is not None and len(seen) < slots:
            while (frame := port.recv(0.01)) is not None:
                repeated = framer.unwrap(frame)
                assert repeated is not None
                seen.append(Packet.decode(repeated.payload).slot)
            if due > 60:  # nothing is left of this period
                break
            due = link.rest(transport)
        assert seen == list(range(slots))
        link.close()

    def test_frames_are_ipv4_udp_with_a_right_checksum(self, tmp_path: Path, port: ShmPort) -> None:
        link, abort = ShmLink(tmp_path, 1, US), threading.Event()
        transport = begun()
        thread = threading.Thread(target=_swallow, args=(link, transport, abort))
        thread.start()
        frame = port.recv()
        abort.set()
        thread.join()
        assert frame is not None
        ether = Ether(frame)
        assert (ether.src, ether.dst, ether.type) == (US.host.mac, AGGREGATION.mac, 0x0800)
        ip = ether[IP]
        assert (ip.src, ip.dst, ip.ttl, ip.flags.DF) == (US.host.ip, AGGREGATION.ip, 64, True)
        assert ip.len == len(frame) - 14
        assert IP(bytes(ip)[:20]).chksum == IP(bytes(IP(**{**ip.fields, "chksum": None}))[:20]).chksum
        udp = ip[UDP]
        assert (udp.sport, udp.dport, udp.len, udp.chksum) == (9347, 9347, ip.len - 20, 0)
        assert Packet.decode(frame[42:]).job == 9

    def test_frames_of_others_are_counted_and_dropped(self, tmp_path: Path, port: ShmPort) -> None:
        foreign = Ether(src=AGGREGATION.mac, dst=US.host.mac) / IP(src="10.0.0.7", dst=US.host.ip)
        junk = [b"", b"\0" * 41, bytes(foreign / UDP(sport=9347, dport=9347) / (b"x" * 60)), b"\xff" * 1500]
        for frame in junk:
            assert port.send(frame)
        transport, answers = begun(), Framer(THEM)
        with threading_drive(ShmLink(tmp_path, 1, US), transport):
            for _ in range(2):
                frame = port.recv()
                assert frame is not None
                good = answers.wrap(result(Packet.decode(frame[42:])).encode(), 0)
                spoilt = good[:20] + bytes([good[20] ^ 1]) + good[21:]  # the IPv4 checksum does not fit
                assert port.send(spoilt)
                assert port.send(good + b"trailer")
        assert transport.done
        assert transport.report().refused == {Verdict.NOT_OURS: len(junk) + 2}

    def test_traffic_classes_go_both_ways(self, tmp_path: Path, port: ShmPort) -> None:
        transport = classed()
        with threading_drive(ShmLink(tmp_path, 1, US), transport):
            classes = []
            for _ in range(2):
                frame = port.recv()
                assert frame is not None
                classes.append(frame[15])
                reply = result(Packet.decode(frame[42:])).encode()
                assert port.send(Framer(THEM).wrap(reply, dscp(3) << 2 | CE))
        assert classes == CLASSES
        assert transport.report().marked == 2

    def test_without_a_switch_the_error_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match=r"port-3: no switch made it"):
            ShmLink(tmp_path, 3, US)

    def test_when_nothing_answers_the_error_says_who_waits_for_what(
        self, tmp_path: Path, port: ShmPort
    ) -> None:
        link, transport = ShmLink(tmp_path, 1, US), begun(workers=2)
        with pytest.raises(
            TransportTimeout,
            match=r"worker 0 of 2 in job 9 waits for results of slot 0 \(round 1\), 1 \(round 1\); "
            r".*Nothing came back at all: the switch does not run",
        ):
            link.drive(transport, 0.2, threading.Event())

    def test_abort_ends_a_reduce(self, tmp_path: Path, port: ShmPort) -> None:
        link, abort = ShmLink(tmp_path, 1, US), threading.Event()
        threading.Timer(0.1, abort.set).start()
        with pytest.raises(Aborted):
            link.drive(begun(), 60, abort)

    def test_a_full_ring_is_waited_for(self, tmp_path: Path, port: ShmPort) -> None:
        transport = SlotTransport(TransportConfig(job=9, worker=0, workers=1, slots=1500))
        transport.begin_reduction(Op.ADD, 256, np.ones(1500 * 256, np.uint32))
        answers, answered = Framer(THEM), set()
        with threading_drive(ShmLink(tmp_path, 1, US), transport):
            while len(answered) < 1500:  # packets come again when this is slower than the timers
                frame = port.recv()
                assert frame is not None
                packet = Packet.decode(frame[42:])
                while not port.send(answers.wrap(result(packet).encode(), 0)):
                    pass
                answered.add(packet.slot)
        assert transport.done

    def test_a_closed_link_says_so(self, tmp_path: Path, port: ShmPort) -> None:
        link = ShmLink(tmp_path, 1, US)
        link.close()
        link.close()
        with pytest.raises(ValueError, match="closed"):
            link.drive(begun(), 1, threading.Event())


class TestUdp:
    def test_three_workers_through_the_real_switch(self) -> None:
        vectors = np.random.default_rng(2).integers(0, 2**32, (3, 30_000), dtype=np.uint32)
        expected = np.maximum.reduce(vectors, axis=0)
        with udp_rack(workers=3) as rack:
            on_every_worker(rack, lambda r: r.reduce_blocks(vectors[r.config.worker], Op.MAX, 32))
        for vector in vectors:
            np.testing.assert_array_equal(vector, expected)

    @pytest.mark.parametrize("kernel", ["segments and coalesces", "refuses", "refuses at last"])
    @pytest.mark.parametrize("disorder", [None, 1, 2], ids=["order", "disorder-1", "disorder-2"])
    def test_batches_change_nothing_but_their_number(
        self, monkeypatch: pytest.MonkeyPatch, kernel: str, disorder: int | None
    ) -> None:
        """With losses, doubles, packets out of order and trimmed ones, and whatever the kernel can do."""
        if kernel == "refuses":
            monkeypatch.setenv("SOFTP4_BATCHES", "off")
        vectors = np.random.default_rng(3).integers(0, 2**32, (3, 40_000), dtype=np.uint32)
        vectors[0, 5_000:9_000] = vectors[:, 20_000:30_000] = 0  # packets of several lengths
        expected = np.add.reduce(vectors, axis=0, dtype=np.uint32)
        with udp_rack(3, 64, random.Random(disorder) if disorder else None) as rack:
            if kernel == "refuses at last":  # no batch may have checksums that nobody computes
                for reducer in rack:
                    assert isinstance(reducer._link, UdpLink)
                    reducer._link._socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
            reports = on_every_worker(rack, lambda r: r.reduce_blocks(vectors[r.config.worker], Op.ADD))
        for vector, report in zip(vectors, reports, strict=True):
            np.testing.assert_array_equal(vector, expected)
            assert report.entered == report.included
            assert not report.refused
            assert (report.batches_up > 0) == (kernel == "segments and coalesces")
            assert (report.batches_down > 0) == (kernel != "refuses")
        # Who is hit hangs on how packets of three workers meet.
        assert disorder is None or any(report.retransmissions for report in reports)

    def test_traffic_classes_go_both_ways(self) -> None:
        transport = classed()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
            switch.bind(("127.0.0.1", 0))
            switch.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            link = UdpLink(("127.0.0.1", 0), switch.getsockname())
            classes = []
            with threading_drive(link, transport):
                for mark in (ECT, CE):
                    payload, (told, *_), _, sender = switch.recvmsg(2048, socket.CMSG_SPACE(4))
                    classes.append(told[2][0])
                    switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp(3) << 2 | mark)
                    switch.sendto(result(Packet.decode(payload)).encode(), sender)
        assert classes == CLASSES
        assert transport.report().marked == 1

    def test_nobody_at_the_aggregation_address(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            nobody = free.getsockname()
            link = UdpLink(("127.0.0.1", 0))  # before the port is free, which it might get
            link.connect(nobody)
        with pytest.raises(TransportTimeout, match=r"cannot be reached.*Connection refused"):
            link.drive(begun(), 0.3, threading.Event())
        link.close()

    @pytest.mark.parametrize(
        "address", ["255.255.255.255", pytest.param("10.9.0.254", marks=pytest.mark.root)]
    )
    def test_no_way_to_the_aggregation_address(self, address: str) -> None:
        """The second is in another subnet than this host, which has no gateway."""

        def connect() -> None:
            link = UdpLink(("0.0.0.0", 0))
            with pytest.raises(OSError, match="no route to the switch's aggregation address") as caught:
                link.connect((address, 9))
            link.close()
            assert f"ip route add {address}/32" in str(caught.value)

        if address.startswith("255"):
            connect()
        else:
            with Namespace() as host:
                host.links.add_veth("eth0", "far")
                host.links.set("eth0", up=True)
                host.links.add_address("eth0", "10.0.0.1/24")
                host.call(connect)

    def test_an_address_in_use(self) -> None:
        link = UdpLink(("127.0.0.1", 0))
        with pytest.raises(OSError, match=f"cannot bind UDP 127.0.0.1:{link.port}: Address already in use"):
            UdpLink(("127.0.0.1", link.port))
        link.close()

    def test_datagrams_that_are_no_results_are_refused(self) -> None:
        transport = begun()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
            switch.bind(("127.0.0.1", 0))
            link = UdpLink(("127.0.0.1", 0), switch.getsockname())
            for junk in (b"", b"x" * 19, b"\x12" * 3000):
                switch.sendto(junk, ("127.0.0.1", link.port))
            with threading_drive(link, transport):
                for _ in range(2):
                    payload, sender = switch.recvfrom(2048)
                    switch.sendto(result(Packet.decode(payload)).encode(), sender)
        assert sum(transport.report().refused.values()) == 3


@pytest.mark.parametrize(
    ("mac", "ip", "udp_port", "message"),
    [
        ("02:00:00:00:00", "10.0.0.1", 1, "not a MAC address"),
        ("zz", "10.0.0.1", 1, "not a MAC address"),
        ("02:00:00:00:00:01", "10.0.0", 1, "4 octets"),
        ("02:00:00:00:00:01", "10.0.0.1", 65536, "65536 is no UDP port"),
    ],
)
def test_addresses_that_are_none(mac: str, ip: str, udp_port: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Endpoint(mac, ip, udp_port)


def _swallow(link: ShmLink, transport: SlotTransport, abort: threading.Event) -> None:
    with pytest.raises(Aborted):
        link.drive(transport, 60, abort)


class threading_drive:  # noqa: N801 - reads as a statement
    """Drive a transport in another thread while the body plays the switch."""

    def __init__(self, link: ShmLink | UdpLink, transport: SlotTransport) -> None:
        self._link = link
        self._thread = threading.Thread(target=link.drive, args=(transport, 60, threading.Event()))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._link.close()


@pytest.mark.root
def test_a_port_of_another_user_is_not_used(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH):
        os.chown(tmp_path / "port-1", 65534, 65534)
        with pytest.raises(OSError, match=r"port-1: it belongs to user .*run the switch as this user"):
            ShmLink(tmp_path, 1, US)
