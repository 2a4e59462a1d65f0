# SPDX-License-Identifier: Apache-2.0
"""Ports of switches that hosts claim over an IP network: where, and with which key."""

from typing import Any

from softp4.native.claims import port_key, read_secret
from weir.agent_service.proto import agent_pb2
from weir.controller.topology import TopologyError
from weir.controller.wiring import Host, Wiring


def place_of(wiring: Wiring, host: Host) -> Any:
    """Return the ``ClaimedPort`` of a host, without its key; None: the host is at the end of a cable."""
    claims = wiring.switch(host.switch).claimed
    if host.claimed is None or claims is None:
        return None
    return agent_pb2.ClaimedPort(host=claims.host, udp_port=host.claimed)


def claimed_ports(wiring: Wiring) -> dict[str, Any]:
    """Return the ``ClaimedPort`` of each host whose port is one, by the host's name.

    Raises:
        TopologyError: a switch's secret cannot be read.
    """
    secrets, problems = {}, []
    for switch in wiring.switches:
        if switch.claimed is not None:
            try:
                secrets[switch.name] = read_secret(switch.claimed.secret)
            except (OSError, ValueError) as error:
                problems.append(f"switch {switch.name}, claimed, secret: {error}")
    if problems:
        raise TopologyError("; ".join(problems))
    found = {host: place for host in wiring.hosts if (place := place_of(wiring, host)) is not None}
    for host, place in found.items():
        place.key = port_key(secrets[host.switch], host.port)
    return {host.name: place for host, place in found.items()}
