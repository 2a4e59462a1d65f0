# SPDX-License-Identifier: Apache-2.0
"""The choice whether packets may cross the kernel in batches, many in one piece."""

import os

_CHOICES = {"on": True, "off": False}


def batches_wanted() -> bool:
    """Return whether sockets may use the kernel's segmentation offloads of UDP, where it has them.

    SOFTP4_BATCHES=off refuses them; without it, or with "on", they are used. Raises ValueError for other
    words.
    """
    chosen = os.environ.get("SOFTP4_BATCHES") or "on"
    if chosen not in _CHOICES:
        raise ValueError(f"SOFTP4_BATCHES is {chosen!r}: it must be on or off, or be unset")
    return _CHOICES[chosen]
