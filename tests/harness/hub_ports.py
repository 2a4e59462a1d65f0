# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine for a hub."""

import socket


def hub_ports(workers: int) -> tuple[int, int]:
    """Return a TCP port, and the first of that many UDP ports, that nobody uses now."""
    while True:
        with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            udp.bind(("127.0.0.1", 0))
            first = udp.getsockname()[1]
            if first + workers <= 0xFFFF:
                return tcp.getsockname()[1], first
