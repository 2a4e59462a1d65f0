# SPDX-License-Identifier: Apache-2.0
"""What is forwarded comes from the addresses of its port: nobody speaks for a switch, or for another host."""

from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

from tests.harness.keys import Lpm
from tests.harness.lab import AGGREGATION_IP, AGGREGATION_MAC, Lab, ip_number, mac_number
from tests.harness.target import Sent
from weir.wire.definition import FLOW_PORT, UDP_PORT, Event

STATIONS, ADDRESSES = "WeirIngress.sources.stations", "WeirIngress.sources.addresses"
FORGED = "WeirIngress.sources.forged"
# Ports: hosts at 1 and 2, another switch at 3, nothing that is known at 4.
MACS = {1: "02:00:00:00:01:01", 2: "02:00:00:00:01:02"}
IPS = {1: "10.0.0.1", 2: "10.0.0.2"}
SPINE_MAC = "02:00:00:01:01:fe"
OTHER_RACK = "10.0.2.0"
EVERYBODY = "ff:ff:ff:ff:ff:ff"
PAYLOAD = Raw(b"of no interest " * 4)


@pytest.fixture
def rack(lab: Lab) -> Lab:
    """Return a switch that looks at sources, and floods."""
    lab.target.set_default(STATIONS, FORGED)
    for port, mac in MACS.items():
        args = (ip_number(IPS[port]),)
        lab.target.insert(STATIONS, (port, mac_number(mac)), "WeirIngress.sources.host", args)
        lab.target.insert(
            "WeirIngress.forwarding.l2", (mac_number(mac),), "WeirIngress.forwarding.forward", (port,)
        )
    lab.target.insert(STATIONS, (3, mac_number(SPINE_MAC)), "WeirIngress.sources.trust")
    for ip, length in ((AGGREGATION_IP, 32), *((ip, 32) for ip in IPS.values()), (OTHER_RACK, 24)):
        lab.target.insert(ADDRESSES, (Lpm(ip_number(ip), length),), FORGED)
    lab.target.set_group(3600, [(1, 0), (2, 0)])
    lab.target.insert(
        "WeirIngress.forwarding.l2", (mac_number(EVERYBODY),), "WeirIngress.forwarding.flood", (3600,)
    )
    lab.target.insert(
        "WeirIngress.arp.addresses",
        (ip_number(AGGREGATION_IP),),
        "WeirIngress.arp.answer",
        (mac_number(AGGREGATION_MAC),),
    )
    return lab


def ethernet(source: str = MACS[1], to: str = MACS[2]) -> Ether:
    """Return the beginning of a frame, by default of the first host to the second."""
    return Ether(src=source, dst=to)


def ip(source: str = IPS[1], **fields: Any) -> IP:
    """Return an IPv4 header, by default of the first host."""
    return IP(src=source, dst=IPS[2], **fields)


RESULT = UDP(sport=UDP_PORT, dport=40000) / PAYLOAD
FORGERIES = {
    "a result of the switch's": ethernet() / ip(AGGREGATION_IP) / RESULT,
    "and with its MAC address": ethernet(AGGREGATION_MAC) / ip(AGGREGATION_IP) / RESULT,
    "the switch's MAC address alone": ethernet(AGGREGATION_MAC) / ip() / RESULT,
    "a fragment of a result": ethernet() / ip(AGGREGATION_IP, flags="MF") / RESULT,
    "the rest of one": ethernet() / ip(AGGREGATION_IP, frag=8) / PAYLOAD,
    "TCP of another host": ethernet() / ip(IPS[2], proto=6) / PAYLOAD,
    "a chunk of another host's flow": ethernet()
    / ip(IPS[2])
    / UDP(sport=FLOW_PORT, dport=FLOW_PORT)
    / PAYLOAD,
    "a host of another rack": ethernet() / ip("10.0.2.7") / RESULT,
    "the switch of another rack": ethernet() / ip("10.0.2.254") / RESULT,
    "another host's MAC address": ethernet(MACS[2], MACS[1]) / ip() / RESULT,
    "a MAC address that nobody has": ethernet("02:00:00:00:77:77") / ip() / RESULT,
    "an unknown protocol from another host": Ether(src=MACS[2], dst=MACS[1], type=0x88B5) / PAYLOAD,
    "IPv6 from another host": ethernet(MACS[2], MACS[1]) / IPv6() / PAYLOAD,
    "a group address": ethernet("03:00:00:00:00:01") / ip() / RESULT,
    "hidden behind a tag of VLAN 0": ethernet() / Dot1Q(vlan=0) / ip(AGGREGATION_IP) / RESULT,
    "behind one with a priority": ethernet() / Dot1Q(vlan=0, prio=7) / ip(AGGREGATION_IP) / RESULT,
    "behind a service tag": ethernet() / Dot1AD(vlan=0) / ip(AGGREGATION_IP) / RESULT,
    "behind two": ethernet() / Dot1AD(vlan=0) / Dot1Q(vlan=0) / ip(AGGREGATION_IP) / RESULT,
    "an ARP answer for the switch": ethernet() / ARP(op=2, hwsrc=MACS[1], psrc=AGGREGATION_IP, pdst=IPS[2]),
    "an ARP answer for another host": ethernet() / ARP(op=2, hwsrc=MACS[1], psrc=IPS[2], pdst=IPS[2]),
    "an announcement of the switch's address": ethernet(to=EVERYBODY)
    / ARP(op=1, hwsrc=MACS[1], psrc=AGGREGATION_IP, pdst=AGGREGATION_IP),
    "an ARP question in another's name": ethernet(to=EVERYBODY)
    / ARP(op=1, hwsrc=MACS[1], psrc=IPS[2], pdst=AGGREGATION_IP),
}


@pytest.mark.parametrize("frame", FORGERIES.values(), ids=FORGERIES.keys())
def test_what_a_host_sends_in_the_name_of_another_is_dropped(rack: Lab, frame: Ether) -> None:
    assert rack.send(1, frame) == []
    assert rack.events() == {Event.DROP_FORGED_SOURCE: 1}


OWN = {
    "its address": ethernet() / ip() / RESULT,
    "TCP": ethernet() / ip(proto=6) / PAYLOAD,
    "no address yet": ethernet() / ip("0.0.0.0") / UDP(sport=68, dport=67) / PAYLOAD,
    "a second address": ethernet() / ip("10.0.0.77") / RESULT,
    "an address of elsewhere": ethernet() / ip("192.168.7.1") / RESULT,
    "an address by itself": ethernet() / ip("169.254.3.4") / RESULT,
    "IPv6": ethernet() / IPv6() / PAYLOAD,
    "an unknown protocol": Ether(src=MACS[1], dst=MACS[2], type=0x88B5) / PAYLOAD,
    "a tagged frame": ethernet() / Dot1Q(vlan=5) / ip(AGGREGATION_IP) / RESULT,
    "an ARP question": ethernet() / ARP(op=1, hwsrc=MACS[1], psrc=IPS[1], pdst=IPS[2]),
    "an ARP answer": ethernet() / ARP(op=2, hwsrc=MACS[1], psrc=IPS[1], pdst=IPS[2]),
    "a question whether an address is free": ethernet()
    / ARP(op=1, hwsrc=MACS[1], psrc="0.0.0.0", pdst="10.0.0.77"),
}


@pytest.mark.parametrize("frame", OWN.values(), ids=OWN.keys())
def test_what_a_host_sends_in_its_own_name_goes_on(rack: Lab, frame: Ether) -> None:
    if rack.target.name == "bmv2" and Dot1Q in frame:
        pytest.skip("kernels take tags off frames before this test's sockets see them")
    assert rack.send(1, frame) == [Sent(2, bytes(frame))]
    assert rack.events() == {Event.FORWARDED: 1}


def test_the_addresses_of_one_port_are_not_those_of_another(rack: Lab) -> None:
    frame = ethernet() / ip() / RESULT
    for port in (2, 3, 4):
        assert rack.send(port, frame) == []
    assert rack.events() == {Event.DROP_FORGED_SOURCE: 3}


def test_a_switch_forwards_what_others_sent(rack: Lab) -> None:
    for source in ("10.0.2.7", "10.0.2.254", AGGREGATION_IP):
        frame = ethernet(SPINE_MAC) / ip(source) / RESULT
        assert rack.send(3, frame) == [Sent(2, bytes(frame))]
    assert rack.events() == {Event.FORWARDED: 3}


def test_the_switch_answers_who_asks_in_its_own_name(rack: Lab) -> None:
    frame = ethernet(to=EVERYBODY) / ARP(op=1, hwsrc=MACS[1], psrc=IPS[1], pdst=AGGREGATION_IP)
    (answer,) = rack.send(1, frame)
    assert (answer.port, Ether(answer.frame)[ARP].hwsrc) == (1, AGGREGATION_MAC)
    assert rack.events() == {Event.ARP_ANSWERED: 1}


def test_a_contribution_is_admissions_business(rack: Lab) -> None:
    """Its entry knows the sender's address and UDP port; whose MAC address it has does not matter."""
    job = rack.job(1, ports=[4])
    assert job.send(0, lanes={0: range(32)}) == job.results(lanes={0: range(32)})
    assert rack.events() == {Event.ROUND_COMPLETE: 1}


def test_a_frame_that_ends_within_its_tag_or_address_is_refused(rack: Lab) -> None:
    if rack.target.name == "bmv2":
        pytest.skip("kernels do not pass on frames that end within their tag")
    frame = bytes(ethernet() / Dot1Q(vlan=0) / ip(AGGREGATION_IP) / RESULT)
    lengths = range(rack.target.shortest_frame, 16)
    for length in lengths:
        assert rack.send(1, frame[:length]) == [], length
    events = rack.events()
    assert sum(events.values()) == len(lengths) and events.keys() <= {
        Event.DROP_PARSER_ERROR,
        Event.DROP_FORGED_SOURCE,
    }
