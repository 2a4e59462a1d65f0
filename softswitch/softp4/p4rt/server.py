# SPDX-License-Identifier: Apache-2.0
"""The gRPC server around the P4Runtime service: address, TLS, start and stop."""

import ssl
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from softp4.p4rt.service import RAW, P4RuntimeService
from softp4.p4rt.sessions import MAX_OPEN
from softp4.p4runtime.schema import METHODS
from softp4.protobuf import handler

_MAX_MESSAGE: Final = 256 << 20  # a program's JSON in one message
_MAX_METADATA: Final = 1 << 20  # a batch's error details
MAX_CALLS: Final = MAX_OPEN + 32
"""Calls at a time, streams among them; one more is refused."""
_KEEPALIVE_MS: Final = 10_000  # of silence, then a ping: so a primary whose machine died is noticed
_KEEPALIVE_TIMEOUT_MS: Final = 10_000
HANDSHAKE_MS: Final = 10_000  # what a connection gets to say that it is one of gRPC's


class ServerError(Exception):
    """The gRPC server cannot be opened. The message says why and what to do."""


@dataclass(frozen=True)
class Tls:
    """Files in PEM format. With ``ca``, clients must show a certificate that it signed (mTLS)."""

    cert: Path
    key: Path
    ca: Path | None = None


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    try:
        key, cert = tls.key.read_bytes(), tls.cert.read_bytes()
        ca = None if tls.ca is None else tls.ca.read_bytes()
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # says what is wrong, which gRPC does not
        trial.load_cert_chain(tls.cert, tls.key)
        if tls.ca is not None:
            trial.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise ServerError(f"TLS: {tls.cert} with key {tls.key} and authority {tls.ca}: {error}") from error
    except OSError as error:
        raise ServerError(f"TLS: cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=ca is not None)


def _parse(message: Any, data: bytes) -> Any:
    """Return a message; for bytes that are none, None: gRPC then answers INTERNAL, without a stack trace."""
    try:
        return message.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return None


def _serialize(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


class P4RuntimeServer:
    """Serves ``service`` until ``close``.

    ``address`` is ``host:port``, where port 0 picks a free one, or ``unix:/path``.
    Raises ServerError when the address cannot be bound or the TLS files are no good.

    Attributes:
        address: where it can be reached.
    """

    def __init__(self, service: P4RuntimeService, address: str, tls: Tls | None = None) -> None:
        host, _, port = address.rpartition(":")
        local = address.startswith("unix:")
        if not local and (not host or not port.isdecimal() or int(port) > 0xFFFF):
            raise ServerError(f"gRPC address {address!r} is neither host:port nor unix:/path")
        options = (
            ("grpc.so_reuseport", 0),  # else two switches could share one port, and alternate
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
            ("grpc.max_metadata_size", _MAX_METADATA),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),  # controllers may ping as often as they like
        )
        pool = futures.ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="p4rt")
        self._server = grpc.server(pool, options=options, maximum_concurrent_rpcs=MAX_CALLS)
        self._server.add_generic_rpc_handlers(
            (handler(service, METHODS, parse=_parse, serialize=_serialize, raw=RAW),)
        )
        credentials = None if tls is None else _credentials(tls)
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            why = "does its folder exist, and may this user write there?" if local else "is the port in use?"
            raise ServerError(f"gRPC cannot listen on {address}: {why}") from error
        self.address = address if local else f"{host}:{bound}"
        self._server.start()

    def close(self) -> None:
        """End every call and stop listening."""
        self._server.stop(grace=None).wait()
