# SPDX-License-Identifier: Apache-2.0
"""Flows over real sockets on the loopback interface."""

import socket
import threading

import numpy as np
import pytest

from weir.host_agent.flows import (
    FlowConfig,
    FlowReceiver,
    FlowSender,
    FlowVerdict,
)
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.transport.links import Aborted, TransportTimeout
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import CE, ECT, NOT_ECT, RELIABLE_DSCP, dscp

LOOPBACK = ("127.0.0.1", 0)


def test_a_tensor_crosses_real_sockets() -> None:
    config = FlowConfig(0xABCD0001)
    values = np.arange(200_000, dtype=np.float32)
    with UdpFlows(LOOPBACK) as left, UdpFlows(LOOPBACK) as right:
        sender, receiver = FlowSender(config), FlowReceiver(config)
        left.mux.add(sender, right.address)
        right.mux.add(receiver, left.address)
        sender.submit(values, ServiceClass(layer=2, budgets=np.array([20_000], np.uint64)))
        serving = threading.Thread(target=right.drive, args=(lambda: receiver.settled and bool(done), 30))
        done: list[bool] = []
        serving.start()
        left.drive(lambda: sender.idle, timeout_s=30)
        done.append(True)
        left.linger(5)
        serving.join()
        (delivery,), (settlement,) = receiver.deliveries(), sender.settlements()
    assert (delivery.received == settlement.delivered).all()
    assert settlement.entered == settlement.kept + settlement.returned
    np.testing.assert_array_equal(delivery.values + settlement.residual(), values)
    assert settlement.returned.lanes <= 20_000


def test_the_traffic_class_crosses_with_the_packet() -> None:
    config = FlowConfig(0xABCD0002)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer, UdpFlows(LOOPBACK) as flows:
        peer.bind(LOOPBACK)
        peer.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        peer.settimeout(10)
        there = Address(*peer.getsockname())
        sender = FlowSender(config)
        flows.mux.add(sender, there)
        sender.submit(np.ones(10, np.float32), ServiceClass(layer=3, budgets=np.array([10], np.uint64)))
        with pytest.raises(TransportTimeout, match=r"flow 0xabcd0002 .* waits for tensors \[1\]"):
            flows.drive(lambda: sender.idle, timeout_s=0)
        classes = []
        for _ in range(2):
            _, ((_, _, tos),), _, _ = peer.recvmsg(2000, 100)
            classes.append(tos[0])
        assert classes == [
            RELIABLE_DSCP << 2 | ECT,
            dscp(3, 0) << 2 | NOT_ECT,
        ]  # the terms, and a chunk that may be trimmed

        # and back: a mark on a chunk reaches the receiver
        marked = FlowReceiver(FlowConfig(0xABCD0003))
        flows.mux.add(marked, there)
        other = FlowSender(FlowConfig(0xABCD0003))
        other.submit(np.ones(10, np.float32))
        peer.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp(0) << 2 | CE)
        peer.sendto(other.poll(0)[0][0].payload, flows.address)
        flows.drive(lambda: marked.counts.marked == 1, timeout_s=10)


def test_strangers_are_refused_and_named_when_nothing_else_comes() -> None:
    receiver = FlowReceiver(FlowConfig(0xABCD0004))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger, UdpFlows(LOOPBACK) as flows:
        flows.mux.add(receiver, Address("127.0.0.1", 1))
        sender = FlowSender(FlowConfig(0xABCD0004))
        sender.submit(np.ones(10, np.float32))
        for datagram in sender.poll(0)[0]:
            stranger.sendto(datagram.payload, flows.address)
        with pytest.raises(TransportTimeout, match="1 WRONG_SOURCE"):
            flows.drive(lambda: not receiver.settled, timeout_s=0.2)
        assert flows.mux.verdicts[FlowVerdict.WRONG_SOURCE] == 1


def test_driving_can_be_given_up() -> None:
    abort = threading.Event()
    abort.set()
    with UdpFlows(LOOPBACK) as flows, pytest.raises(Aborted):
        flows.drive(lambda: False, timeout_s=10, abort=abort)


def test_an_address_in_use_is_named() -> None:
    with UdpFlows(LOOPBACK) as flows, pytest.raises(OSError, match=str(flows.address.port)):
        UdpFlows(flows.address)
