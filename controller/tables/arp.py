# SPDX-License-Identifier: Apache-2.0
"""``arp``: addresses for which the switch answers ARP requests itself."""

from weir.controller.addresses import ip_number
from weir.controller.entries import TableEntry
from weir.wire.addresses import mac_number

ADDRESSES = "WeirIngress.arp.addresses"
ANSWER = "WeirIngress.arp.answer"


def answer(ip: str, mac: str) -> TableEntry:
    """Answer "who has ``ip``?" with ``mac``."""
    return TableEntry(ADDRESSES, (("address", ip_number(ip)),), ANSWER, (("mac", mac_number(mac)),))
