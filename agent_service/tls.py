# SPDX-License-Identifier: Apache-2.0
"""TLS for the agent service, from three PEM files. Imported by clients: needs nothing but grpc."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from weir.agent_service.certificates import connection_problem, file_problem


class TlsError(Exception):
    """TLS is asked for and cannot be had. The message names the file or setting."""


@dataclass(frozen=True)
class TlsFiles:
    """Own certificate chain, its key, and the authority that signs the other side's.

    A server with ``ca`` asks every client for a certificate (mutual TLS). A client without ``cert`` and
    ``key`` shows none; without ``ca`` it trusts the system's authorities.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise TlsError("a TLS certificate and its key belong together: give both or neither")

    @classmethod
    def given(cls, cert: Path | None, key: Path | None, ca: Path | None) -> "TlsFiles | None":
        """Return these files; None when there is none of them."""
        return cls(cert, key, ca) if cert or key or ca else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "TlsFiles | None":
        """Read WEIR_TLS_CERT, WEIR_TLS_KEY and WEIR_TLS_CA; return None when none of them is set."""
        names = ("WEIR_TLS_CERT", "WEIR_TLS_KEY", "WEIR_TLS_CA")
        return cls.given(*(Path(environment[name]) if environment.get(name) else None for name in names))

    def channel_credentials(self) -> Any:
        """Return the credentials of a client. Raises TlsError when a file cannot be used, or no longer."""
        self._check()
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))

    def server_credentials(self) -> Any:
        """Return the credentials of a server. Raises TlsError without a certificate that is good now."""
        if self.cert is None:
            raise TlsError("a TLS server needs a certificate and its key (--tls-cert, --tls-key)")
        self._check()
        pair = (_read(self.key), _read(self.cert))
        return grpc.ssl_server_credentials([pair], _read(self.ca), self.ca is not None)

    def problem(self, address: str) -> str:
        """Return why TLS with the server at an address fails, as text; "" if nothing is known."""
        return connection_problem(address, self.cert, self.key, self.ca)

    def _check(self) -> None:
        """Raise TlsError unless the files can be read, and their certificates are valid now."""
        for path in (self.cert, self.key, self.ca):
            _read(path)
        if why := file_problem(self.cert, self.key, self.ca):
            raise TlsError(why)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"cannot read {path}: {error.strerror}") from None
