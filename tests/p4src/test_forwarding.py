# SPDX-License-Identifier: Apache-2.0
"""Everything that is not for the aggregation address: L2, IPv4 routes, ARP, and the controller's port."""

from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, UDP, IPOption_NOP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Padding, Raw

from tests.harness.keys import Lpm
from tests.harness.lab import AGGREGATION_IP, AGGREGATION_MAC, Lab, ip_number, mac_number
from tests.harness.target import CPU_PORT, PORTS, Sent
from weir.wire.definition import Event

L2 = "WeirIngress.forwarding.l2"
ROUTES = "WeirIngress.forwarding.ipv4"
FORWARD = "WeirIngress.forwarding.forward"
HERE, THERE = "02:00:00:00:01:01", "02:00:00:00:01:02"
EVERYBODY = "ff:ff:ff:ff:ff:ff"


def frame_to(mac: str, *, size: int = 40) -> Any:
    """Return a frame of a protocol that the program does not know."""
    return Ether(src=HERE, dst=mac, type=0x88B5) / Raw(bytes(i % 256 for i in range(size)))


def test_a_frame_goes_to_the_port_of_its_address_as_it_is(lab: Lab) -> None:
    lab.target.insert(L2, (mac_number(THERE),), FORWARD, (3,))
    whatever = [
        frame_to(THERE, size=1400),
        frame_to(THERE, size=0),
        Ether(src=HERE, dst=THERE) / IP(dst="10.0.0.9", ttl=1, chksum=0xBAD) / ICMP(),
        Ether(src=HERE, dst=THERE)
        / IP(dst="10.0.0.9", options=[IPOption_NOP()] * 4)
        / UDP(dport=9347)
        / b"x",
        Ether(src=HERE, dst=THERE) / IP(dst="10.0.0.9", frag=3) / Raw(b"rest of something"),
        Ether(src=HERE, dst=THERE) / IP(dst="10.0.0.9") / UDP(dport=9347) / Raw(b"\xff" * 60),
        Ether(src=HERE, dst=THERE) / IP(dst="10.0.0.9") / UDP() / b"payload" / Padding(b"\0" * 20),
        Ether(src=HERE, dst=THERE) / ARP(pdst="10.0.0.9"),
    ]
    for frame in whatever:
        assert lab.send(1, frame) == [Sent(3, bytes(frame))]
    assert lab.events() == {Event.FORWARDED: len(whatever)}


def test_weir_for_another_switch_passes_through(lab: Lab) -> None:
    """A whole contribution, lanes and all, to an aggregation address that is not this switch's."""
    job = lab.job(2)
    frame = job.contribution(0, lanes={g: range(32) for g in range(8)})
    frame[Ether].dst, frame[IP].dst = THERE, "10.0.1.254"
    lab.target.insert(L2, (mac_number(THERE),), FORWARD, (4,))
    assert lab.send(1, frame) == [Sent(4, bytes(frame))]


def test_an_unknown_address_is_dropped(lab: Lab) -> None:
    assert lab.send(1, frame_to(THERE)) == []
    assert lab.events() == {Event.DROP_NO_ROUTE: 1}


@pytest.mark.parametrize("port", PORTS)
def test_a_flooded_frame_does_not_return_to_its_port(lab: Lab, port: int) -> None:
    lab.target.set_group(3600, [(each, 0) for each in PORTS])
    lab.target.insert(L2, (mac_number(EVERYBODY),), "WeirIngress.forwarding.flood", (3600,))
    frame = frame_to(EVERYBODY)
    others = [Sent(each, bytes(frame)) for each in PORTS if each != port]
    assert lab.send(port, frame) == others
    assert lab.events() == {Event.FORWARDED: 1}


def test_only_the_publisher_sends_to_its_subscribers(lab: Lab) -> None:
    """Not a subscriber, nor anybody else, not even in the publisher's name."""
    publisher, *subscribers = PORTS
    stranger = subscribers.pop()
    group_mac = "01:00:5e:77:00:10"
    key, group = (mac_number(group_mac),), 3600
    lab.target.set_group(group, [(port, 0) for port in subscribers])
    lab.target.insert(L2, key, "WeirIngress.forwarding.publish", (group, publisher))
    weights = (
        Ether(src=HERE, dst=group_mac)
        / IP(src="10.0.0.1", dst="239.119.0.16")
        / UDP(sport=9349, dport=9349)
        / Raw(b"weights" * 9)
    )
    frames = [weights, frame_to(group_mac)]
    for frame in frames:
        assert lab.send(publisher, frame) == [Sent(port, bytes(frame)) for port in subscribers]
        for port in (*subscribers, stranger):
            assert lab.send(port, frame) == []
    forged = len(frames) * (len(subscribers) + 1)
    assert lab.events() == {Event.FORWARDED: len(frames), Event.DROP_NOT_PUBLISHER: forged}
    lab.target.insert(L2, (mac_number(THERE),), FORWARD, (publisher,))  # other packets are as before
    assert lab.send(stranger, frame_to(THERE)) == [Sent(publisher, bytes(frame_to(THERE)))]


def test_unknown_addresses_may_be_flooded(lab: Lab) -> None:
    lab.target.set_group(3600, [(1, 0), (2, 0)])
    lab.target.set_default(L2, "WeirIngress.forwarding.flood", (3600,))
    assert lab.send(1, frame_to(THERE)) == [Sent(2, bytes(frame_to(THERE)))]


# -- IPv4 ------------------------------------------------------------------------------------------


@pytest.fixture
def router(lab: Lab) -> Lab:
    """Return the switch's MAC takes frames to be routed; 10.7/16 is behind port 2, 10.7.7/24 behind port
    3.
    """
    lab.target.insert(L2, (mac_number(AGGREGATION_MAC),), "WeirIngress.forwarding.local")
    for prefix, length, port, mac in (("10.7.0.0", 16, 2, THERE), ("10.7.7.0", 24, 3, HERE)):
        lab.target.insert(
            ROUTES, (Lpm(ip_number(prefix), length),), "WeirIngress.forwarding.route", (port, mac_number(mac))
        )
    return lab


def packet_to(address: str, **fields: Any) -> Any:
    """Return an IPv4 packet that the switch is asked to route."""
    ip = IP(src="10.0.0.1", dst=address, **fields)
    return Ether(src=HERE, dst=AGGREGATION_MAC) / ip / UDP(sport=5, dport=7) / b"payload"


def routed(frame: Any, mac: str) -> bytes:
    """Return the same packet one hop on."""
    after = Ether(bytes(frame))
    after.src, after.dst = AGGREGATION_MAC, mac
    after[IP].ttl -= 1
    del after[IP].chksum
    return bytes(after)


def test_routes_by_longest_prefix(router: Lab) -> None:
    for address, port, mac in (("10.7.1.1", 2, THERE), ("10.7.7.1", 3, HERE), ("10.7.6.255", 2, THERE)):
        frame = packet_to(address)
        assert router.send(1, frame) == [Sent(port, routed(frame, mac))]
    assert router.events() == {Event.FORWARDED: 3}


def test_the_checksum_is_right_after_every_hop(router: Lab) -> None:
    """Identifications that make the checksum take every kind of value, 0x0000 and near-overflow included."""
    for identification in [*range(0, 0x10000, 0x333), *range(0xBC00, 0xBC20)]:
        frame = packet_to("10.7.1.1", id=identification, ttl=2)
        assert router.send(1, frame) == [Sent(2, routed(frame, THERE))]


def test_a_checksum_of_zero_comes_out_where_it_must(router: Lab) -> None:
    """One's complement has two zeros; RFC 1624 is about not confusing them here."""
    frame = packet_to("10.7.1.1")
    frame[IP].id = 0
    after = Ether(routed(frame, THERE))
    frame[IP].id = after[IP].chksum  # adds up to 0xFFFF, so the new checksum is 0
    assert Ether(routed(frame, THERE))[IP].chksum == 0
    assert router.send(1, frame) == [Sent(2, routed(frame, THERE))]


def test_options_are_routed_along(router: Lab) -> None:
    frame = packet_to("10.7.1.1", options=[IPOption_NOP()] * 8)
    assert router.send(1, frame) == [Sent(2, routed(frame, THERE))]


def test_no_route(router: Lab) -> None:
    assert router.send(1, packet_to("10.8.0.1")) == []
    assert router.send(1, Ether(dst=AGGREGATION_MAC, type=0x88B5) / b"not IPv4") == []
    assert router.events() == {Event.DROP_NO_ROUTE: 2}


@pytest.mark.parametrize("ttl", [0, 1])
def test_time_to_live_runs_out(router: Lab, ttl: int) -> None:
    assert router.send(1, packet_to("10.7.1.1", ttl=ttl)) == []
    assert router.events() == {Event.DROP_TTL_EXPIRED: 1}


@pytest.mark.parametrize("fields", [{"chksum": 1}, {"version": 6}, {"ihl": 4}])
def test_a_wrong_ip_header_is_not_routed(router: Lab, fields: dict[str, int]) -> None:
    assert router.send(1, packet_to("10.7.1.1", **fields)) == []
    assert router.events() == {Event.DROP_MALFORMED: 1}


def test_weir_to_another_switch_is_routed(router: Lab) -> None:
    frame = router.job(2).contribution(0, lanes={0: range(32)})
    frame[IP].dst = "10.7.1.254"
    assert router.send(1, frame) == [Sent(2, routed(frame, THERE))]


# -- ARP -------------------------------------------------------------------------------------------


@pytest.fixture
def answering(lab: Lab) -> Lab:
    """Return the switch owns the aggregation address; other ARP goes to port 4."""
    lab.target.insert(
        "WeirIngress.arp.addresses",
        (ip_number(AGGREGATION_IP),),
        "WeirIngress.arp.answer",
        (mac_number(AGGREGATION_MAC),),
    )
    lab.target.insert(L2, (mac_number(EVERYBODY),), FORWARD, (4,))
    return lab


def question() -> Any:
    """Return who has the aggregation address? Tell 10.0.0.1."""
    request = ARP(op="who-has", hwsrc=HERE, psrc="10.0.0.1", pdst=AGGREGATION_IP)
    return Ether(src=HERE, dst=EVERYBODY) / request


@pytest.mark.parametrize("port", PORTS)
def test_who_has_the_aggregation_address(answering: Lab, port: int) -> None:
    answer = Ether(src=AGGREGATION_MAC, dst=HERE) / ARP(
        op="is-at", hwsrc=AGGREGATION_MAC, psrc=AGGREGATION_IP, hwdst=HERE, pdst="10.0.0.1"
    )
    assert answering.send(port, question()) == [Sent(port, bytes(answer))]
    assert answering.send(port, question() / Padding(bytes(18))) == [Sent(port, bytes(answer) + bytes(18))]
    assert answering.events() == {Event.ARP_ANSWERED: 2}


OTHER_ARP = {
    "hardware that is not Ethernet": (14, 2, 6),
    "protocol that is not IPv4": (16, 2, 0x86DD),
    "long hardware addresses": (18, 1, 8),
    "long protocol addresses": (19, 1, 16),
    "a reply": (20, 2, 2),
    "another address": (41, 1, 7),
}


@pytest.mark.parametrize(("offset", "size", "value"), OTHER_ARP.values(), ids=OTHER_ARP.keys())
def test_other_arp_is_ordinary_traffic(answering: Lab, offset: int, size: int, value: int) -> None:
    """One field of the request says something else."""
    frame = bytearray(bytes(question()))
    frame[offset : offset + size] = value.to_bytes(size, "big")
    assert answering.send(1, frame) == [Sent(4, bytes(frame))]
    assert answering.events() == {Event.FORWARDED: 1}


# -- controller ------------------------------------------------------------------------------------


def test_packet_out_leaves_by_the_port_it_names_and_is_not_looked_at(lab: Lab) -> None:
    job = lab.job(1)
    for frame in (bytes(frame_to(THERE)), bytes(job.contribution(0)), b"\0" * 14):
        for port in PORTS:
            assert lab.target.packet_out(port, frame) == [Sent(port, frame)]
    assert lab.events() == {Event.FORWARDED: 3 * len(PORTS)}


def test_packet_in_says_where_the_frame_came_in(lab: Lab) -> None:
    lab.target.insert(L2, (mac_number(THERE),), "WeirIngress.forwarding.punt")
    frame = frame_to(THERE)
    for port in PORTS:
        header = (port << 7).to_bytes(2, "big")
        assert lab.send(port, frame) == [Sent(CPU_PORT, header + bytes(frame))]


def test_a_flood_may_include_the_controller(lab: Lab) -> None:
    lab.target.set_group(3600, [(1, 0), (2, 0), (CPU_PORT, 0)])
    lab.target.insert(L2, (mac_number(EVERYBODY),), "WeirIngress.forwarding.flood", (3600,))
    frame = bytes(frame_to(EVERYBODY))
    header = (2 << 7).to_bytes(2, "big")
    assert lab.send(2, frame) == [Sent(1, frame), Sent(CPU_PORT, header + frame)]
