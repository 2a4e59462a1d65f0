# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that must be told one before they start, or that come back to the one they had."""

import contextlib
import os
import socket
from typing import Final

# Below the ports that the kernel gives to anyone who asks for any: it gives none of these to anybody in the
# time until the server starts. Every process begins to look at a place of its own.
_PORTS: Final = range(10_000, 32_000)
_claims: Final[list[socket.socket]] = []  # abstract socket names, this process's until it ends


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port of the loopback interface that nobody uses and no test run on this machine was given.

    A name in the kernel claims it until this process ends, so that two runs side by side cannot both find it.
    """
    first = os.getpid() * 100 + len(_claims)
    for turn in range(len(_PORTS)):
        port = _PORTS[(first + turn) % len(_PORTS)]
        with contextlib.ExitStack() as unless_taken, contextlib.suppress(OSError):
            claim = unless_taken.enter_context(socket.socket(socket.AF_UNIX))
            claim.bind(f"\0softp4-test-port-{port}")
            with socket.socket(socket.AF_INET, kind) as probe:
                probe.bind(("127.0.0.1", port))
            unless_taken.pop_all()
            _claims.append(claim)
            return port
    raise RuntimeError("no port is free")


def udp_ports(count: int) -> int:
    """Return the first of free UDP ports in a row."""
    while True:
        first = free_port(socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
            return first
