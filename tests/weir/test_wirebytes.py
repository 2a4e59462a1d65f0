# SPDX-License-Identifier: Apache-2.0
"""What TcpMeter reads is what a connection carried, acknowledged by its peer."""

import socket

from weir.train.messages import WireCounters
from weir.train.wirebytes import TCP_HEADERS, TcpMeter, dense_bytes


def carried(traffic: WireCounters) -> tuple[int, int]:
    """Payload bytes up and down, headers taken off."""
    return (
        traffic.bytes_up - TCP_HEADERS * traffic.packets_up,
        traffic.bytes_down - TCP_HEADERS * traffic.packets_down,
    )


def receive(connection: socket.socket, size: int) -> None:
    while size:
        size -= len(connection.recv(min(size, 1 << 16)))


def test_the_meter_counts_payload_and_headers_of_both_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        meter = TcpMeter()
        before = meter.read()
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            ours.sendall(bytes(20_000))
            receive(theirs, 20_000)
            theirs.sendall(bytes(7_000))
            receive(ours, 7_000)
            ours.sendall(b"!")  # acknowledges what came
            receive(theirs, 1)
            grown = meter.read() - before
        # Both ends are this process's: what one sends the other receives. A SYN counts as a byte.
        up, down = carried(grown)
        assert down == 27_001
        assert 27_000 <= up <= 27_003
        assert min(grown.packets_up, grown.packets_down) > 4
        assert meter.read() - before == grown  # closed connections keep their counts


def test_dense_bytes_are_full_packets_of_values_and_exponents() -> None:
    packet = 42 + 28 + 8 + 1024
    assert dense_bytes(256) == 2 * packet
    assert dense_bytes(256 * 256) == 257 * packet
    assert dense_bytes(256 * 256 + 1) == (257 + 2) * packet
