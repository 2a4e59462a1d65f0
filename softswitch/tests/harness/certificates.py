# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests of TLS."""

from pathlib import Path

import grpc
from trustme import CA


def make(folder: Path) -> None:
    """Make ``ca``, which signed ``server`` and ``client``, and ``stranger-ca``, which signed ``stranger``.

    Each is a pair of NAME.pem and NAME.key; the certificates are good for localhost and 127.0.0.1.
    """
    for authority, names in (("ca", ("server", "client")), ("stranger-ca", ("stranger",))):
        signing = CA()
        signing.cert_pem.write_to_path(folder / f"{authority}.pem")
        signing.private_key_pem.write_to_path(folder / f"{authority}.key")
        for name in names:
            made = signing.issue_cert("localhost", "127.0.0.1")
            made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            made.private_key_pem.write_to_path(folder / f"{name}.key")


def credentials(folder: Path, authority: str, name: str | None = None) -> grpc.ChannelCredentials:
    """Return credentials of a client that trusts ``authority``, and shows the certificate of ``name``."""
    parts = [(folder / f"{authority}.pem").read_bytes()]
    if name is not None:
        parts += [(folder / f"{name}.key").read_bytes(), (folder / f"{name}.pem").read_bytes()]
    return grpc.ssl_channel_credentials(*parts)
