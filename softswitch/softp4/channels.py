# SPDX-License-Identifier: Apache-2.0
"""Channels of gRPC: the one place that opens any, and that first imports gRPC.

No HTTP proxy takes them, whatever address they are to: http_proxy and https_proxy are set for the web, and a
proxy of the web refuses gRPC or reaches another network. Who needs one for gRPC names it in grpc_proxy.

gRPC does not repeat calls. Where it may, and a call cannot connect because a switch restarts, gRPC (1.76 to
1.85 at least) may tell the call's status but never end its replies: who reads them waits for ever.

gRPC writes a line whenever a process forks while a call of another thread is open, as heartbeats always are:
one for every worker of a DataLoader and epoch. It reads how much to write when it is imported, so it is
imported here with GRPC_VERBOSITY=ERROR, unless the variable is set.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any, Final

_VERBOSITY: Final = "GRPC_VERBOSITY"
_PROXY: Final = "grpc_proxy"


def _import_quietly() -> Any:
    """Return gRPC, imported; the environment, which child processes inherit, stays as it is."""
    if _VERBOSITY in os.environ:
        return importlib.import_module("grpc")
    os.environ[_VERBOSITY] = "ERROR"
    try:
        return importlib.import_module("grpc")
    finally:
        del os.environ[_VERBOSITY]


_grpc: Final = _import_quietly()


def open_channel(address: str, credentials: Any = None, options: Sequence[tuple[str, int]] = ()) -> Any:
    """Return a ``grpc.Channel``, with a connection of its own that waits for no other's retries.

    Args:
        address: ``host:port`` or ``unix:/path``.
        credentials: ``grpc.ChannelCredentials`` for TLS; None for none.
        options: gRPC's, besides those that all channels have.
    """
    every = (
        ("grpc.enable_http_proxy", int(bool(os.environ.get(_PROXY)))),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    )
    if credentials is None:
        return _grpc.insecure_channel(address, (*every, *options))
    return _grpc.secure_channel(address, credentials, (*every, *options))


def without_proxy(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment for others' programs: their gRPC takes no HTTP proxy but that of grpc_proxy."""
    return {_PROXY: "", **environment}
