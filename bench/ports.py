# SPDX-License-Identifier: Apache-2.0
"""Free ports for what a benchmark starts."""

import socket


def free_port() -> int:
    """Return a TCP port that nobody listens on now (in a namespace of its own, any port is free)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
