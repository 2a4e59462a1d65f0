# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that must be told one before they start, or that come back to the one they had."""

import itertools
import os
import socket
from typing import Final

# Below the ports that the kernel gives to whoever asks for any: it gives none of these to anybody in the
# time until the server starts. Every process of a test run counts from a place of its own.
_FIRST, _LAST = 10_000, 32_000
_TURNS: Final = itertools.count(os.getpid() * 100)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port of the loopback interface that nobody uses, and that this process was not given
    before.
    """
    for turn in _TURNS:
        port = _FIRST + turn % (_LAST - _FIRST)
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("unreachable")
