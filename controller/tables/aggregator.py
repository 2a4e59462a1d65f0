# SPDX-License-Identifier: Apache-2.0
"""``aggregator``: the IP addresses for which the switch itself aggregates. Others are forwarded."""

from weir.controller.addresses import ip_number
from weir.controller.entries import TableEntry

ADDRESSES = "WeirIngress.aggregator.addresses"
AGGREGATE = "WeirIngress.aggregator.aggregate"


def address(ip: str, headroom: int) -> TableEntry:
    """Take Weir packets to this address as contributions, which the target can lengthen by ``headroom``
    bytes.
    """
    return TableEntry(ADDRESSES, (("address", ip_number(ip)),), AGGREGATE, (("headroom", headroom),))
