# SPDX-License-Identifier: Apache-2.0
"""MAC, IPv4 and service addresses: checked once as text, used as numbers."""

import functools
import ipaddress
from typing import Annotated

from pydantic import AfterValidator

from weir.wire.addresses import mac_number

BROADCAST_MAC = 0xFFFF_FFFF_FFFF
_GROUP_BIT = 1 << 40


@functools.lru_cache(1 << 16)
def ip_number(text: str) -> int:
    """Return the 32-bit number of an IPv4 address written ``10.0.0.1``."""
    return int(ipaddress.IPv4Address(text))


def _unicast_mac(text: str) -> str:
    text = text.lower()
    number = mac_number(text)
    if number & _GROUP_BIT or number == 0:
        raise ValueError(f"{text} is a group or null MAC address; a host or switch needs a unicast one")
    return text


def _unicast_ip(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IPv4 address") from None
    if address.is_multicast or address.is_unspecified or address == ipaddress.IPv4Address(0xFFFF_FFFF):
        raise ValueError(f"{address} is not a unicast address")
    return str(address)


def _subnet(text: str) -> str:
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IPv4 subnet ({error}); write 10.0.1.0/24") from None


def _service_address(text: str) -> str:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return text
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(f"{text!r} is not a service address; write HOST:PORT or unix:/path/to/socket")
    return text


Mac = Annotated[str, AfterValidator(_unicast_mac)]
Ip = Annotated[str, AfterValidator(_unicast_ip)]
Subnet = Annotated[str, AfterValidator(_subnet)]
ServiceAddress = Annotated[str, AfterValidator(_service_address)]
