# SPDX-License-Identifier: Apache-2.0
"""A UDP payload and the traffic class it is to travel in: the state machines' output."""

from typing import Final, NamedTuple

from weir.wire.definition import ECT, RELIABLE_DSCP

RELIABLE_CLASS: Final = RELIABLE_DSCP << 2 | ECT
"""Traffic class of what is small or sent again."""


class Datagram(NamedTuple):
    """payload: of one UDP packet. traffic_class: DSCP << 2 | ECN, the second byte of the IPv4 header."""

    payload: bytes
    traffic_class: int
