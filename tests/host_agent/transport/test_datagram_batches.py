# SPDX-License-Identifier: Apache-2.0
"""Datagrams in batches over UDP sockets."""

import socket

import numpy as np

from weir.host_agent.transport.datagram_batches import DatagramSocket


def test_more_datagrams_than_one_call_returns_wait_for_the_next() -> None:
    size, batch, batches = 20, 58, 60
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        sending, receiving = DatagramSocket(sender), DatagramSocket(receiver)
        for number in range(batches):
            packets = np.full(size * batch, number, np.uint8)
            assert sending.send(packets, size, receiver.getsockname()) == packets.size
        found: list[int] = []
        while arrivals := receiving.receive():
            found += [arrived.payload(index)[0] for arrived in arrivals for index in range(arrived.count)]
        sending.close()
        receiving.close()
    assert found == [number for number in range(batches) for _ in range(batch)]
