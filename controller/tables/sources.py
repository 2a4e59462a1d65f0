# SPDX-License-Identifier: Apache-2.0
"""``sources``: the addresses that frames to be forwarded may come from, by port. Others are dropped."""

from ipaddress import IPv4Network

from weir.controller.addresses import ip_number
from weir.controller.entries import Lpm, TableEntry
from weir.wire.addresses import mac_number

STATIONS = "WeirIngress.sources.stations"
HOST = "WeirIngress.sources.host"
TRUST = "WeirIngress.sources.trust"
ADDRESSES = "WeirIngress.sources.addresses"
FORGED = "WeirIngress.sources.forged"


def host(port: int, mac: str, ip: str) -> TableEntry:
    """Let the host with these addresses send by ``port``."""
    return TableEntry(STATIONS, _station(port, mac), HOST, (("ip", ip_number(ip)),))


def switch(port: int, mac: str) -> TableEntry:
    """Let the switch with this address send by ``port`` whatever it forwards."""
    return TableEntry(STATIONS, _station(port, mac), TRUST)


def taken(subnet: IPv4Network) -> TableEntry:
    """Let no host send from these addresses, but for its own."""
    return TableEntry(ADDRESSES, (("src", Lpm(int(subnet.network_address), subnet.prefixlen)),), FORGED)


def _station(port: int, mac: str) -> tuple[tuple[str, int], ...]:
    return (("port", port), ("src_mac", mac_number(mac)))
