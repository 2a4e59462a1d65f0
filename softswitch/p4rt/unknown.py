# SPDX-License-Identifier: Apache-2.0
"""Finds what a message says that this version of P4Runtime does not know, and so would leave out."""

from typing import Any


def has_unknown(message: Any) -> bool:
    """Return whether a message, or one in it, has a field that its type does not have.

    One that has is made anew: what was taken out of it before is no longer part of it.
    """
    before = message.SerializeToString()
    message.DiscardUnknownFields()
    if message.ByteSize() == len(before):
        return False
    message.ParseFromString(before)
    return True
