# SPDX-License-Identifier: Apache-2.0
"""MAC addresses as people write them, and as frames and tables hold them."""

import re
from functools import lru_cache
from typing import Final

_MAC: Final = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")


@lru_cache(4096)
def mac_bytes(text: str) -> bytes:
    """Return the six octets of a MAC address written ``02:00:00:00:00:01``.

    Raises:
        ValueError: it is not written so.
    """
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address; write six hex pairs like 02:00:00:00:00:01")
    return bytes.fromhex(text.replace(":", ""))


def mac_number(text: str) -> int:
    """Return the 48-bit number of a MAC address; ValueError as of ``mac_bytes``."""
    return int.from_bytes(mac_bytes(text), "big")
