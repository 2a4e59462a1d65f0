# SPDX-License-Identifier: Apache-2.0
"""Switches, hosts and links of a network, and the roles that follow from how they are linked."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_serializer, model_validator

from weir.controller.addresses import Ip, Mac, ServiceAddress, Subnet
from weir.controller.qos import Port, Qos
from weir.wire.definition import COLUMN, GROUP_LANES, SLOT_LANES, WEIR, WIDE_LANES

Target = Literal["soft", "bmv2", "tofino"]
HEADROOM: dict[Target, int] = {"soft": 0xFFFF, "bmv2": 512, "tofino": 0xFFFF}
LANE_BYTES = 4
V1MODEL_PROGRAM = "weir_v1model"
BFRT_PROGRAM = "weir_tna"
WIDE_PROGRAM = "weir_v1model_wide"
HUB_PROGRAM = "weir_v1model_hub"
WIDE_BYTES = 28 + WEIR.size + COLUMN.size + WIDE_LANES * LANE_BYTES  # of a wide packet, from IPv4 on
PIPE_PORTS = 128  # device ports of a Tofino's pipe
AGAIN_PORT = 68  # of these, that for recirculation: AGAIN_PORT of p4src/tna/headers.p4

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Aggregation(_Model):
    """The addresses that workers send contributions to, which the switch answers for itself."""

    mac: Mac = "02:00:00:00:00:fe"
    ip: Ip = "10.0.0.254"


class SwitchTls(_Model):
    """TLS towards a switch: the authority that signed its certificate and, for mutual TLS, our own pair."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> "SwitchTls":
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both or neither")
        return self


class Claims(_Model):
    """Ports of a soft switch that hosts claim over an IP network.

    ``secret``: the file of the switch's secret, of which the ports' keys are made. ``host``: the switch's
    address, as hosts reach it; the address at which they reach the controller, unless given.
    """

    secret: Path
    host: str = ""


class PortSettings(_Model):
    """The settings of all ports of a Tofino that the topology names."""

    speed: Literal["10G", "25G", "40G", "50G", "100G"] = "100G"
    fec: Literal["none", "firecode", "reed-solomon"] = "none"
    autoneg: Literal["default", "enabled", "disabled"] = "default"


class Switch(_Model):
    """One switch and how to program it.

    ``target``: "soft" for the soft switch; "bmv2", the careful default, for BMv2, which can add no more than
    512 bytes to a packet, to which its workers keep; "tofino" for one that takes packets of one column, with
    as many lanes of ADD as ``lanes`` says and 32 of other operators, and gives a job 2^n slots at a multiple
    of that. ``lanes``: 32, or 64: then the packet that completes a round passes a Tofino twice.
    ``subnet``: the rack behind a leaf, as other racks route to it; the /24 around the aggregation address
    unless given. ``thrift``: BMv2's own management address, for queue rates and depths.
    ``program``: "weir_v1model_wide", for the soft switch, takes wide packets, too; "weir_v1model_hub" has
    slots for long paths; "weir_tna" is that of a
    Tofino, whose ``grpc`` address speaks BfRuntime instead of P4Runtime; its only chip has ``device_id`` 0.
    ``ports``: how to set up a Tofino's ports; None: somebody else does it. ``claimed``: of the ports that
    hosts claim over an IP network.
    """

    name: Name
    device_id: int = Field(default=1, ge=0, lt=1 << 64)
    grpc: ServiceAddress
    program: Name = V1MODEL_PROGRAM
    target: Target = "bmv2"
    lanes: Literal[32, 64] = 32
    aggregation: Aggregation = Aggregation()
    tls: SwitchTls | None = None
    subnet: Subnet | None = None
    thrift: ServiceAddress | None = None
    ports: PortSettings | None = None
    claimed: Claims | None = None

    @model_validator(mode="after")
    def _driver(self) -> "Switch":
        if self.bfrt and self.target != "tofino":
            raise ValueError(f"program {self.program} is for target tofino, not {self.target}")
        if self.wide and self.target != "soft":
            raise ValueError(f"program {self.program} is for target soft, not {self.target}")
        if self.lanes > GROUP_LANES and self.target != "tofino":
            raise ValueError(f"lanes are for target tofino: {self.target} takes packets of any number")
        if self.ports is not None and not self.bfrt:
            raise ValueError(f"ports can be set up where the program is {BFRT_PROGRAM}, not {self.program}")
        if self.claimed is not None and self.target != "soft":
            raise ValueError(f"only a switch with target soft has ports that hosts claim, not {self.target}")
        return self

    @property
    def bfrt(self) -> bool:
        """Return whether the switch is programmed by BfRuntime."""
        return self.program == BFRT_PROGRAM

    @property
    def wide(self) -> bool:
        """Return whether the switch takes wide packets."""
        return self.program == WIDE_PROGRAM

    @property
    def prefix(self) -> IPv4Network:
        """Addresses of the rack behind this switch."""
        return IPv4Network(self.subnet or f"{self.aggregation.ip}/24", strict=False)

    @property
    def headroom(self) -> int:
        """Number of bytes by which the switch can make a packet longer."""
        return HEADROOM[self.target]

    @property
    def fills(self) -> bool:
        """Return whether workers must see to it that no result is longer than its packet by more than half
        of a slot's lanes.
        """
        return self.headroom < SLOT_LANES * LANE_BYTES

    @property
    def recirculates(self) -> bool:
        """Return whether packets pass a Tofino's pipe twice, by its port for recirculation."""
        return self.bfrt and self.lanes > GROUP_LANES

    @property
    def max_lanes(self) -> int:
        """Return how many lanes packets of ADD may have, and of one column only; 0: any number, of all."""
        return self.lanes if self.target == "tofino" else 0


class Host(_Model):
    """One host on one switch port. ``shm``: directory of the switch's shared-memory ports, if it has.
    ``claimed``: the UDP port of the switch where the host claims its port, over an IP network.
    """

    name: Name
    switch: Name
    port: Port
    mac: Mac
    ip: Ip
    shm: str | None = None
    claimed: int | None = Field(default=None, ge=1, lt=1 << 16)


class End(_Model):
    """One end of a link, written ``leaf1:5``: a switch and its port."""

    switch: Name
    port: Port

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        switch, colon, port = value.rpartition(":")
        if not (colon and switch and port.isdigit()):
            raise ValueError(f"{value!r} is not the end of a link: write SWITCH:PORT")
        return {"switch": switch, "port": int(port)}

    @model_serializer
    def __str__(self) -> str:
        return f"{self.switch}:{self.port}"


class Link(_Model):
    """A cable between two switches."""

    ends: tuple[End, End]

    def __str__(self) -> str:
        return f"{self.ends[0]} - {self.ends[1]}"


class Wiring(_Model):
    """All switches, hosts and links. What is not linked, or has hosts, is a leaf; of the others, those linked
    to a leaf are spines, and the rest are cores. ``mtu``: the longest IPv4 packet that all links carry;
    shared-memory ports carry any.
    """

    switches: tuple[Switch, ...] = Field(min_length=1)
    hosts: tuple[Host, ...] = ()
    links: tuple[Link, ...] = ()
    mtu: int = Field(default=1500, ge=1280, le=65535)
    qos: Qos = Qos()

    def switch(self, name: str) -> Switch:
        """Return the switch of that name. Raises KeyError for a name the topology does not have."""
        for switch in self.switches:
            if switch.name == name:
                return switch
        raise KeyError(f"the topology has no switch {name!r}")

    def max_lanes(self, switches: Iterable[str]) -> int:
        """Return how many lanes of ADD these switches all take in a packet; 0: any number."""
        return min(filter(None, (self.switch(name).max_lanes for name in switches)), default=0)

    def wide(self, hosts: Iterable[Host]) -> bool:
        """Return whether wide packets pass between these hosts. Of many switches, any may be in between."""
        hosts = tuple(hosts)
        switches = self.switches if self.links else tuple(self.switch(host.switch) for host in hosts)
        by_memory = not self.links and all(host.shm is not None for host in hosts)
        return all(switch.wide for switch in switches) and (by_memory or self.mtu >= WIDE_BYTES)

    def hosts_of(self, switch: str) -> tuple[Host, ...]:
        """Return the hosts on a switch, by port."""
        return tuple(sorted((h for h in self.hosts if h.switch == switch), key=lambda h: h.port))

    def neighbours(self, switch: str) -> tuple[tuple[int, Switch], ...]:
        """Return the links of a switch, in the order of the file: its own port, and the switch there."""
        ports = {
            there.switch: here.port
            for link in self.links
            for here, there in (link.ends, link.ends[::-1])
            if here.switch == switch
        }
        return tuple((ports[other.name], other) for other in self.switches if other.name in ports)

    def tiers(self) -> dict[str, int]:
        """Return the tier of each switch: 0 for a leaf, 1 for a spine, 2 for a core."""
        racks = {host.switch for host in self.hosts}
        ends = [(link.ends[i].switch, link.ends[1 - i].switch) for link in self.links for i in (0, 1)]
        linked = {here for here, _there in ends}
        spines = {here for here, there in ends if here not in racks and there in racks}
        return {
            switch.name: 0
            if switch.name in racks or switch.name not in linked
            else 1
            if switch.name in spines
            else 2
            for switch in self.switches
        }

    def tier(self, number: int) -> tuple[Switch, ...]:
        """Return the switches of a tier, in the order of the file."""
        tiers = self.tiers()
        return tuple(switch for switch in self.switches if tiers[switch.name] == number)

    @property
    def leaves(self) -> tuple[Switch, ...]:
        """Switches that hosts may be on, in the order of the file."""
        return self.tier(0)

    @property
    def spines(self) -> tuple[Switch, ...]:
        """Switches that join racks to pods, in the order of the file."""
        return self.tier(1)

    @property
    def cores(self) -> tuple[Switch, ...]:
        """Switches that join pods, in the order of the file."""
        return self.tier(2)

    def pods(self) -> "tuple[Pod, ...]":
        """Return the leaves that share spines, with these, in the order of the file. An unlinked leaf is a
        pod.
        """
        tiers = self.tiers()
        peers: dict[str, set[str]] = {name: set() for name in tiers if tiers[name] < 2}
        for link in self.links:
            here, there = (end.switch for end in link.ends)
            if here in peers and there in peers:
                peers[here].add(there)
                peers[there].add(here)
        pods, seen = [], set[str]()
        for leaf in (name for name in peers if tiers[name] == 0):
            if leaf in seen:
                continue
            reached, fresh = {leaf}, {leaf}
            while fresh:
                fresh = set().union(*(peers[name] for name in fresh)) - reached
                reached |= fresh
            seen |= reached
            inside = [name for name in peers if name in reached]
            pods.append(
                Pod(
                    leaves=tuple(name for name in inside if tiers[name] == 0),
                    spines=tuple(name for name in inside if tiers[name] == 1),
                )
            )
        return tuple(pods)


@dataclass(frozen=True)
class Pod:
    """The names of leaves that share spines, and of these."""

    leaves: tuple[str, ...]
    spines: tuple[str, ...]
