# SPDX-License-Identifier: Apache-2.0
"""Workers on kernel sockets in namespaces of their own, and a switch between them on veth pairs."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

from softp4.dataplane.ports import PortLoop
from softp4.runtime.queueing import Queueing
from softp4.switch import Switch
from tests.dataplane.veths import Veths, made_veths
from tests.harness.effort import effort
from tests.host_agent.transport.racks import on_every_worker, reducers, switch_with_job
from weir.controller.qos import Direction, Loss
from weir.controller.sync import EntryUpdate, Verb
from weir.controller.tables import losses
from weir.host_agent.transport.bindings import MAX_PAYLOAD
from weir.host_agent.transport.links import UdpLink
from weir.host_agent.transport.reducer import Reducer
from weir.netns.offloads import offloads_off
from weir.p4src import PROGRAM, WIDE_PROGRAM
from weir.simulator.entries import AGGREGATION, apply
from weir.wire.definition import UDP_PORT, WIDE_LANES, Op

pytestmark = pytest.mark.root

SLOTS: Final = 128
PORTS: Final = (1, 2)
DIRECTIONS: Final[tuple[Direction, ...]] = ("ingress", "egress")


@pytest.fixture
def lab() -> Iterator[Veths]:
    with made_veths() as made:
        for host in made.hosts.values():
            host.ip("neighbour", "replace", AGGREGATION.ip, "lladdr", AGGREGATION.mac, "dev", "eth0")
        yield made


@contextlib.contextmanager
def rack(lab: Veths, wide: bool = False) -> Iterator[tuple[Switch, PortLoop, list[Reducer]]]:
    """Yield a switch on AF_PACKET ports, and a reducer in each host's namespace; wide: for wide packets."""
    program = WIDE_PROGRAM if wide else PROGRAM
    with switch_with_job(len(PORTS), SLOTS, program) as (switch, job), PortLoop() as loop:
        for port in PORTS:
            lab.attach(loop, port, f"sw{port}")
        loop.set_switch(switch)
        loop.start()
        links = [lab.hosts[port].call(lambda p=port: _link(p)) for port in PORTS]
        made = reducers(job, links, SLOTS, timers={"wide": wide})
        yield switch, loop, made
        for reducer in made:
            reducer.close()


def _link(port: int) -> UdpLink:
    return UdpLink((f"10.0.0.{port}", UDP_PORT), (AGGREGATION.ip, UDP_PORT))


@pytest.mark.parametrize("network", effort(["lossy", "slow"], ["plain", "lossy", "slow"]))
@pytest.mark.parametrize("batches", ["on", "segmented by the hosts", "off"])
@pytest.mark.parametrize(("mtu", "block"), [(1500, 256), (9000, WIDE_LANES)])
def test_sums_are_the_same(
    lab: Veths, monkeypatch: pytest.MonkeyPatch, mtu: int, block: int, batches: str, network: str
) -> None:
    """Through real interfaces, whichever side segments batches, and whatever becomes of single packets of "
    "them."""
    lab.set_mtu(mtu)
    if batches == "off":
        monkeypatch.setenv("SOFTP4_BATCHES", "off")
    if batches == "segmented by the hosts":
        for host in lab.hosts.values():
            host.call(lambda: offloads_off("eth0"))
    vectors = np.random.default_rng(4).integers(0, 2**32, (len(PORTS), 200_000), dtype=np.uint32)
    expected = np.add.reduce(vectors, axis=0, dtype=np.uint32)
    with rack(lab, block == WIDE_LANES) as (switch, loop, workers):
        for port, direction in itertools.product(PORTS if network == "lossy" else (), DIRECTIONS):
            lose = losses.fault(Loss(switch="s", port=port, direction=direction, probability=0.03))
            apply(switch, [[EntryUpdate(Verb.INSERT, lose)]])
        for port in PORTS if network == "slow" else ():
            loop.set_queueing(port, Queueing(rate_bps=200_000_000, depth_packets=SLOTS))
        reports = on_every_worker(workers, lambda r: r.reduce_blocks(vectors[r.config.worker], Op.ADD, block))
        ports = [loop.statistics(port) for port in PORTS]
    for vector, report in zip(vectors, reports, strict=True):
        np.testing.assert_array_equal(vector, expected)
        assert report.entered == report.included
        assert not report.refused
        assert report.retransmissions or network != "lossy"
        assert (report.batches_up > 0) == (batches != "off")
    for port_saw in ports:
        assert (port_saw.rx_batches > 0) == (batches == "on")
        # A port with a rate sends each frame in its time: more than one when its switch is late.
        assert (port_saw.tx_batches > 0) == (batches != "off") or network == "slow"


def test_a_way_too_narrow_is_said_on_joining(lab: Veths) -> None:
    with (
        contextlib.closing(lab.hosts[1].call(lambda: _link(1))) as link,
        pytest.raises(OSError, match=r"has an MTU of 1500, but packets have up to 4160 bytes"),
    ):
        link.connect((AGGREGATION.ip, UDP_PORT), MAX_PAYLOAD)
    lab.hosts[1].set_mtu("eth0", 1000)
    with pytest.raises(
        OSError, match=r"the path to 10\.0\.0\.254 has an MTU of 1000, but packets have up to 1144 bytes"
    ):
        lab.hosts[1].call(lambda: _link(1))


@pytest.mark.parametrize("batches", ["on", "off"])
def test_a_way_that_becomes_too_narrow_is_an_error(
    lab: Veths, monkeypatch: pytest.MonkeyPatch, batches: str
) -> None:
    """Packets that are too long one by one are no fault of batches."""
    monkeypatch.setenv("SOFTP4_BATCHES", batches)
    with rack(lab) as (_, _, workers):
        lab.hosts[1].set_mtu("eth0", 1000)
        with pytest.raises(OSError, match="path's MTU must hold 1144 bytes"):
            workers[0].reduce_blocks(np.ones(100_000, np.uint32), Op.ADD)
