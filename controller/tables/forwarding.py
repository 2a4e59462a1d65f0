# SPDX-License-Identifier: Apache-2.0
"""``forwarding``: an L2 switch and IPv4 router for packets that are not the aggregator's."""

from ipaddress import IPv4Network

from weir.controller.addresses import BROADCAST_MAC
from weir.controller.entries import Lpm, TableEntry
from weir.wire.addresses import mac_number

L2 = "WeirIngress.forwarding.l2"
FORWARD = "WeirIngress.forwarding.forward"
FLOOD = "WeirIngress.forwarding.flood"
PUBLISH = "WeirIngress.forwarding.publish"
LOCAL = "WeirIngress.forwarding.local"
IPV4 = "WeirIngress.forwarding.ipv4"
ROUTE = "WeirIngress.forwarding.route"
SPRAY = "WeirIngress.forwarding.spray"


def to_mac(mac: str, port: int) -> TableEntry:
    """Send frames for ``mac`` out of ``port``."""
    return TableEntry(L2, (("dst_mac", mac_number(mac)),), FORWARD, (("port", port),))


def broadcast(group: int) -> TableEntry:
    """Send broadcast frames to every port of multicast group ``group``, but not back where they came from."""
    return TableEntry(L2, (("dst_mac", BROADCAST_MAC),), FLOOD, (("group", group),))


def to_subscribers(mac: str, group: int, publisher: int) -> TableEntry:
    """Send frames for ``mac`` to every port of a multicast group, if they came in by port ``publisher``."""
    return TableEntry(
        L2, (("dst_mac", mac_number(mac)),), PUBLISH, (("group", group), ("publisher", publisher))
    )


def own_mac(mac: str) -> TableEntry:
    """Take frames for ``mac`` as the switch's own: it routes what they carry."""
    return TableEntry(L2, (("dst_mac", mac_number(mac)),), LOCAL)


def to_ip(ip: str, mac: str, port: int) -> TableEntry:
    """Route packets for ``ip`` that were sent to the switch's own MAC to ``mac`` by ``port``."""
    return to_subnet(IPv4Network(ip), mac, port)


def to_subnet(subnet: IPv4Network, mac: str, port: int) -> TableEntry:
    """Route packets for ``subnet`` that were sent to the switch's own MAC to ``mac`` by ``port``."""
    return TableEntry(IPV4, _within(subnet), ROUTE, (("port", port), ("dst_mac", mac_number(mac))))


def sprayed(subnet: IPv4Network, group: int) -> TableEntry:
    """Spray packets for ``subnet`` that were sent to the switch's own MAC over a group's paths."""
    return TableEntry(IPV4, _within(subnet), SPRAY, (("group", group),))


def _within(subnet: IPv4Network) -> tuple[tuple[str, Lpm], ...]:
    return (("dst", Lpm(int(subnet.network_address), subnet.prefixlen)),)
