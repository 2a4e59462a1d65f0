# SPDX-License-Identifier: Apache-2.0
"""Ports that hosts claim over an IP network: their keys, and whether they can be reached.

A switch has one secret, in a file. Each of its ports has a key of its own, made of the secret and the port's
number: anyone who knows one port's key has that port, and no other. How a host proves that it has the key is
in
``claim.h``.
"""

import hashlib
import secrets
import socket
import time
from pathlib import Path
from typing import Final

_ASK: Final = b"sp4claim\1".ljust(32, b"\0")
_CHALLENGE: Final = b"sp4claim\2"
_ASK_AGAIN_S: Final = 0.2

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


def reach(address: tuple[str, int], timeout_s: float) -> float | None:
    """Ask a port for a challenge, which takes no key and changes nothing.

    Args:
        address: the switch's, in numbers or a name, and the port's UDP port.

    Returns:
        Seconds until the answer; None: there was none.

    Raises:
        OSError: no path to the switch.
    """
    family, _, _, _, there = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    end = time.monotonic() + timeout_s
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(there)
        probe.settimeout(_ASK_AGAIN_S)
        while (asked := time.monotonic()) < end:
            try:
                probe.send(_ASK)
                if probe.recv(len(_ASK) + 1).startswith(_CHALLENGE):
                    return time.monotonic() - asked
            except TimeoutError:
                continue
            except ConnectionRefusedError:
                time.sleep(_ASK_AGAIN_S)
    return None
