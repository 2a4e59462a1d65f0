# SPDX-License-Identifier: Apache-2.0
"""Finds what a message says that this version of P4Runtime does not know, and so would leave out."""

from typing import Any


def has_unknown(message: Any) -> bool:
    """Return whether a message, or one in it, has a field that its type does not have."""
    known = type(message)()  # a copy: protobuf 3.20 remembers sizes that DiscardUnknownFields has changed
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())
