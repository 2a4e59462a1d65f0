# SPDX-License-Identifier: Apache-2.0
"""The link that a member of a job takes: its host's shared-memory port, a port over IP, or a cable's end."""

import os
import socket
from typing import Literal, get_args

from weir.agent_service.client import Membership
from weir.host_agent.transport.bindings import MAX_PAYLOAD, USUAL_PAYLOAD
from weir.host_agent.transport.frames import Addresses, Endpoint
from weir.host_agent.transport.links import ShmLink, UdpLink
from weir.host_agent.transport.ports import Port
from weir.host_agent.transport.tunnel_link import TunnelLink

LinkKind = Literal["shm", "ip", "udp"]

_ANY_ADDRESS = ("0.0.0.0", 0)


def wanted_link() -> LinkKind | None:
    """Return the link that WEIR_LINK asks for; None when it leaves the choice to us."""
    wanted = os.environ.get("WEIR_LINK") or None
    if wanted not in (None, *get_args(LinkKind)):
        raise ValueError(f"WEIR_LINK is {wanted!r}: it must be shm, ip or udp, or be unset")
    return wanted  # type: ignore[return-value]


def bind_udp(wanted: LinkKind | None) -> UdpLink | None:
    """Return a socket whose port the controller is told on joining; None when only shared memory will do."""
    return None if wanted == "shm" else UdpLink(_ANY_ADDRESS)


def choose_port(membership: Membership, wanted: LinkKind | None, udp: UdpLink | None) -> Port:
    """Return the port of a member: its host's shared-memory port, or its port over IP, else ``udp``.

    Takes ``udp`` over: it is closed when it is not used. A port over IP has its UDP port inside the frames.

    Raises:
        ValueError: the host has no such link, or its address is another machine's.
        OSError: the port cannot be opened.
    """
    name = f"weir-{membership.job_id}"
    payload = MAX_PAYLOAD if membership.wide else USUAL_PAYLOAD
    if membership.shm_dir is not None and wanted in (None, "shm"):
        if udp is not None:
            udp.close()
        return Port(ShmLink(membership.shm_dir, membership.switch_port, _addresses(membership)), name)
    if udp is None:
        raise ValueError(
            f"WEIR_LINK is shm, but host {membership.host_name!r} has no shared-memory port in the "
            "controller's topology: give it one (shm: DIRECTORY), or set WEIR_LINK=udp"
        )
    claimed = membership.claimed
    if claimed is not None and wanted in (None, "ip"):
        udp.close()
        hub = claimed.host, claimed.udp_port
        return Port(TunnelLink(hub, claimed.key, _addresses(membership), payload=payload), name)
    if wanted == "ip":
        raise ValueError(
            f"WEIR_LINK is ip, but host {membership.host_name!r} does not claim its port over IP in the "
            "controller's topology (claimed: UDP port); `weir hub` makes one where every host does"
        )
    aggregator = (membership.aggregation.ip, membership.aggregation.udp_port)
    _require_own_address(membership)
    udp.connect(aggregator, payload)
    return Port(udp, name)


def _addresses(membership: Membership) -> Addresses:
    host, switch = membership.host, membership.aggregation
    return Addresses(
        Endpoint(host.mac, host.ip, host.udp_port), Endpoint(switch.mac, switch.ip, switch.udp_port)
    )


def _require_own_address(membership: Membership) -> None:
    """Raise ValueError unless this machine has the address that the topology gives its host.

    The switch takes a host's packets from its port alone, and sends results to its address.
    """
    ip, name = membership.host.ip, membership.host_name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            pass
        else:
            return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((membership.aggregation.ip, membership.aggregation.udp_port))  # sends nothing
            here = f"its packets to the switch would come from {probe.getsockname()[0]}"
        except OSError as error:
            here = f"it has no route to the switch ({membership.aggregation.ip}: {error.strerror})"
    raise ValueError(
        f"this machine is not host {name!r}, which has the address {ip} in the controller's topology: no "
        f"interface here has it, and {here}. Set WEIR_HOST to the name of this machine there, or give "
        f"the interface the address {ip}"
    )
