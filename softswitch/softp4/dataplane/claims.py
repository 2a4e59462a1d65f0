# SPDX-License-Identifier: Apache-2.0
"""Keys of ports that hosts claim over an IP network.

A switch has one secret, in a file. Each of its ports has a key of its own, made of the secret and the port's
number: whoever knows one port's key has that port, and no other. How a host proves that it has the key is in
``native/claim.h``.
"""

import hashlib
import secrets
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 16
SECRET_BYTES: Final = 32


def port_key(secret: bytes, port: int) -> bytes:
    """Return the key of a port, KEY_BYTES of them.

    Args:
        secret: the switch's, SECRET_BYTES of them.
        port: its number.
    """
    return hashlib.blake2b(port.to_bytes(4, "big"), key=secret, digest_size=KEY_BYTES).digest()


def read_secret(path: Path) -> bytes:
    """Return the secret in a file of 64 hexadecimal digits.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    try:
        secret = bytes.fromhex(path.read_text("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"{path} does not hold a secret: write {2 * SECRET_BYTES} hexadecimal digits")
    return secret


def write_secret(path: Path) -> None:
    """Write a new secret, which only this user can read. Raises OSError: the file exists, for example."""
    path.touch(0o600, exist_ok=False)
    path.write_text(secrets.token_hex(SECRET_BYTES) + "\n", "ascii")
