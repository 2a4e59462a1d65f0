# SPDX-License-Identifier: Apache-2.0
"""Tests of what may follow ``--port``."""

from pathlib import Path

import pytest

from softp4.dataplane.port_spec import Claimed, Interface, Pcap, PortSpec, Shm, Tunnel, parse_port
from softp4.runtime.queueing import Queueing

GOOD = {
    "1=veth1": PortSpec(1, Interface("veth1")),
    "1=veth1,depth=9": PortSpec(1, Interface("veth1"), Queueing(depth_packets=9)),
    "0=shm": PortSpec(0, Shm()),
    "2=pcap:a.pcap,": PortSpec(2, Pcap(Path("a.pcap"), None)),
    "2=pcap:,b": PortSpec(2, Pcap(None, Path("b"))),
    "2=pcap:a,b=c,d": PortSpec(2, Pcap(Path("a"), Path("b=c,d"))),
    "2=pcap:a,b,rate=1mbit": PortSpec(2, Pcap(Path("a"), Path("b")), Queueing(rate_bps=10**6)),
    "5=udp:127.0.0.1:4001:127.0.0.1:4002": PortSpec(5, Tunnel(("127.0.0.1", 4001), ("127.0.0.1", 4002))),
    "5=udp::4001:[fd00::1]:4002": PortSpec(5, Tunnel(("", 4001), ("fd00::1", 4002))),
    "5=udp:[::1]:1:leaf2.example:2,depth=9": PortSpec(
        5, Tunnel(("::1", 1), ("leaf2.example", 2)), Queueing(depth_packets=9)
    ),
    "5=claim::4001:/etc/secret": PortSpec(5, Claimed(("", 4001), Path("/etc/secret"))),
    "5=claim:[::1]:4001:se:cret,pps=5": PortSpec(
        5, Claimed(("::1", 4001), Path("se:cret")), Queueing(rate_pps=5)
    ),
    "1=shm,rate=100mbit,depth=32": PortSpec(1, Shm(), Queueing(rate_bps=10**8, depth_packets=32)),
    "1=eth0,pps=5,burst=3000,depth_bytes=9000": PortSpec(
        1, Interface("eth0"), Queueing(rate_pps=5, burst_bytes=3000, depth_bytes=9000)
    ),
}

BAD = {
    "shm": "expected N=IFACE, N=shm",
    "x=shm": "with N from 0 to 510",
    "511=shm": "with N from 0 to 510",
    "1=": "expected N=IFACE",
    "1=,rate=1mbit": "expected N=IFACE",
    "1=pcap:": "with at least one file",
    "1=udp:4001": "expected N=udp:HOST:PORT:PEERHOST:PEERPORT",
    "1=udp:127.0.0.1:4001:127.0.0.1:0": "expected N=udp:",
    "1=udp:127.0.0.1:4001::4002": "expected N=udp:",
    "1=udp:127.0.0.1:70000:127.0.0.1:4002": "expected N=udp:",
    "1=claim:4001:secret": "expected N=claim:HOST:PORT:SECRETFILE",
    "1=claim::0:secret": "expected N=claim:HOST:PORT:SECRETFILE",
    "1=claim::4001:": "expected N=claim:HOST:PORT:SECRETFILE",
    "1=shm,rat=1mbit": "options are rate=RATE, pps=PACKETS",
    "1=shm,rate=1mbit,pp=1": "there is no option 'pp'",
    "1=shm,rate=fast": "'fast' is no rate: expected a number with kbit, mbit or gbit",
    "1=shm,depth=many": "depth=many is no number",
    "1=shm,depth=-1": "depth_packets is -1",
}


@pytest.mark.parametrize("text", GOOD)
def test_ports(text: str) -> None:
    assert parse_port(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_refusals_say_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_port(text)
    assert BAD[text] in str(caught.value)
    assert text in str(caught.value)
