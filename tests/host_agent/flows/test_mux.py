# SPDX-License-Identifier: Apache-2.0
"""Several flows of a host: packets find their flow, strangers do not, and the most urgent goes first."""

import numpy as np
import pytest

from weir.host_agent.flows import FlowConfig, FlowMux, FlowReceiver, FlowSender, FlowVerdict
from weir.host_agent.flows.codec import Chunk, Head, decode
from weir.host_agent.flows.frames import Address
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import dscp

CHUNKS = 20
THERE, FRIEND, STRANGER = Address("10.0.0.1"), Address("10.0.0.2"), Address("10.0.0.3")


def sender(flow: int, layer: int) -> FlowSender:
    made = FlowSender(FlowConfig(flow, first_window=100))
    made.submit(np.ones(352 * CHUNKS, np.float32), ServiceClass(layer=layer))
    return made


def test_front_layers_go_first_and_equals_take_turns() -> None:
    mux = FlowMux()
    for flow, layer in ((1, 3), (2, 0), (3, 0)):
        mux.add(sender(flow, layer), THERE)
    packets, _ = mux.poll(0)
    order = [decode(packet.datagram.payload).head.flow for packet in packets]  # type: ignore[union-attr]
    assert order == [2, 3] * CHUNKS + [1] * CHUNKS


def test_what_becomes_urgent_between_polls_overtakes() -> None:
    mux = FlowMux()
    mux.add(sender(1, 3), THERE)
    first, again = mux.poll(7, limit=5)
    assert len(first) == 5
    assert again == 7  # there is more
    mux.add(sender(2, 0), THERE)
    codes = [packet.datagram.traffic_class >> 2 for packet in mux.poll(7)[0]]
    assert codes == [dscp(0)] * CHUNKS + [dscp(3)] * (CHUNKS - 5)


def test_only_the_peer_may_write_into_a_flow() -> None:
    mux = FlowMux()
    receiver = FlowReceiver(FlowConfig(7))
    mux.add(receiver, FRIEND)
    chunk = Chunk(Head(7, 0, 1, 1), 0, 0, bytes(40)).encode()
    assert mux.on_packet(chunk, 0, 0, STRANGER) is FlowVerdict.WRONG_SOURCE
    assert mux.on_packet(chunk[:23], 0, 0, FRIEND) is FlowVerdict.SHORT
    other = Chunk(Head(8, 0, 1, 1), 0, 0, bytes(40)).encode()
    assert mux.on_packet(other, 0, 0, FRIEND) is FlowVerdict.WRONG_FLOW
    assert receiver.deliveries() == []
    assert mux.on_packet(chunk, 0, 0, FRIEND) is FlowVerdict.ACCEPTED
    assert len(receiver.deliveries()) == 1
    assert sum(mux.refused().values()) == 3


def test_ends_of_tensors_are_told_once_on_either_side() -> None:
    here, there = FlowMux(), FlowMux()
    one, other = FlowSender(FlowConfig(7)), FlowReceiver(FlowConfig(7))
    here.add(one, THERE)
    there.add(other, FRIEND)
    one.submit(np.ones(352 * 2, np.float32))
    told = []
    for _ in range(8):
        for sends, takes, source in ((here, there, FRIEND), (there, here, THERE)):
            for packet in sends.poll(0)[0]:
                takes.on_packet(packet.datagram.payload, 0, packet.datagram.traffic_class, source)
                if takes.ended():
                    told.append((len(one.settlements()), len(other.deliveries())))
    assert told == [(0, 1), (1, 0)]


def test_a_packet_of_another_worker_is_refused() -> None:
    receiver = FlowReceiver(FlowConfig(7, worker=3))
    chunk = Chunk(Head(7, 4, 1, 1), 0, 0, bytes(40)).encode()
    assert receiver.on_packet(chunk, 0) is FlowVerdict.WRONG_WORKER


def test_a_flow_id_is_used_once() -> None:
    mux = FlowMux()
    flow = FlowReceiver(FlowConfig(7))
    mux.add(flow, FRIEND)
    with pytest.raises(ValueError, match="0x00000007"):
        mux.add(FlowSender(FlowConfig(7)), FRIEND)
    mux.remove(flow)
    mux.add(FlowSender(FlowConfig(7)), FRIEND)


def test_the_next_deadline_is_the_earliest() -> None:
    mux = FlowMux()
    assert mux.deadline is None
    mux.add(sender(1, 0), THERE)
    mux.poll(0)
    mux.add(sender(2, 0), THERE)
    assert mux.poll(1000)[1] == 50_000_000
