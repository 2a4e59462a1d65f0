# SPDX-License-Identifier: Apache-2.0
"""The network that a local cluster builds: its shape, its links, their faults, and background traffic.

Also names what every part of it is called and on which ports it is, so that the cluster over shared memory
and the one over network namespaces are the same network.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from weir.background import IncastSpec, Sender, Victim
from weir.wire.definition import MAX_CHILDREN

if TYPE_CHECKING:
    from weir.controller.topology import Topology
    from weir.controller.wiring import Host, Target

Background = Literal["none", "incast"]

MAX_RACKS: Final = 8
MAX_SPINES: Final = 8
LOOPBACK: Final = "127.0.0.1"
DEPTH: Final = 64  # packets a queue of a shaped link holds
BACKGROUND_HOSTS: Final = 2  # in each rack
_SHAPE: Final = re.compile(r"leaf-spine-([1-9]\d?)x([1-9]\d?)")


@dataclass(frozen=True)
class Shape:
    """One switch (no spines), or ``racks`` leaves that are each joined to all of ``spines`` spines."""

    racks: int = 1
    spines: int = 0

    @property
    def single(self) -> bool:
        """Return whether it is one switch."""
        return not self.spines

    def __str__(self) -> str:
        return "single" if self.single else f"leaf-spine-{self.racks}x{self.spines}"


SINGLE: Final = Shape()


def parse_shape(text: str) -> Shape:
    """Parse "single" or "leaf-spine-RxS". Raises ValueError saying what would do."""
    if text == "single":
        return SINGLE
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a topology: use single, or leaf-spine-RxS with R racks and S spines, "
            "for example leaf-spine-2x2"
        )
    shape = Shape(int(found[1]), int(found[2]))
    if shape.racks > MAX_RACKS or shape.spines > MAX_SPINES:
        raise ValueError(f"{text}: at most {MAX_RACKS} racks and {MAX_SPINES} spines fit on one machine")
    return shape


@dataclass(frozen=True)
class NetworkSpec:
    """A network on this machine.

    shape: which switches. rate_bps: of every link, in both directions; None: as fast as the machine.
    up_bps: of what hosts in namespaces send, where that is another rate. depth: packets each queue of a
    shaped link holds. loss: share of packets that every link loses, in each direction. background: what other
    hosts send; load: the share of a victim's link that it takes; dscp: its class. qos: further settings of
    the topology file's ``qos`` section.
    """

    shape: Shape = SINGLE
    rate_bps: int | None = None
    up_bps: int | None = None
    depth: int = DEPTH
    loss: float = 0.0
    background: Background = "none"
    load: float = 0.5
    dscp: int = 0
    qos: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss is {self.loss}: a share of packets, from 0 to less than 1")
        if not 0 < self.load <= 1:
            raise ValueError(f"load is {self.load}: a share of a link, above 0, at most 1")
        if self.background != "none" and self.rate_bps is None:
            raise ValueError("background traffic is a share of a link's rate: set a rate for the links")

    @property
    def host_rate_bps(self) -> int | None:
        """Rate of what hosts send; None: as fast as the machine."""
        return self.up_bps or self.rate_bps

    @property
    def extra_hosts(self) -> int:
        """Number of background hosts in each rack."""
        return BACKGROUND_HOSTS if self.background != "none" else 0

    @property
    def port_options(self) -> str:
        """Return what follows a port on the switch's command line."""
        return f",rate={self.rate_bps}bit,depth={self.depth}" if self.rate_bps else ""


@dataclass(frozen=True)
class Cable:
    """A link between a leaf and a spine, each with the number of its port."""

    leaf: str
    leaf_port: int
    spine: str
    spine_port: int


@dataclass(frozen=True)
class NetworkPlan:
    """A network with names: the topology for the controller, and who is who in it.

    workers: the host of each rank. background: hosts that disturb them. victims: whom they send to, one
    worker's host in each rack.
    """

    spec: NetworkSpec
    topology: "Topology"
    workers: "tuple[Host, ...]"
    background: "tuple[Host, ...]"
    victims: "tuple[Host, ...]"
    cables: tuple[Cable, ...]

    @property
    def spines(self) -> tuple[str, ...]:
        """Names of the spines."""
        return tuple(dict.fromkeys(cable.spine for cable in self.cables))

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the switches that have hosts."""
        return tuple(switch.name for switch in self.topology.switches if switch.name not in self.spines)

    def gateway(self, host: "Host") -> "tuple[str, str]":
        """Return the MAC and IP address through which a host reaches other racks: its leaf's own."""
        own = self.topology.switch(host.switch).aggregation
        return own.mac, own.ip


def make_plan(
    spec: NetworkSpec,
    workers: int,
    *,
    grpc: Callable[[str], str],
    shm: Callable[[str], str] | None = None,
    target: "Target" = "soft",
) -> NetworkPlan:
    """Name everything of a network for ``workers`` workers, spread over the racks in order of rank.

    grpc: switch name -> P4Runtime address. shm: leaf name -> directory of its shared-memory ports. Raises
    ValueError when there are more workers than a job can have, or fewer than racks.
    """
    racks = spec.shape.racks
    if not 1 <= workers <= MAX_CHILDREN:
        raise ValueError(f"workers is {workers}: a switch serves 1 to {MAX_CHILDREN}")
    if workers < racks:
        raise ValueError(f"{workers} workers cannot be spread over {racks} racks: use at least {racks}")
    each = -(-workers // racks) + spec.extra_hosts
    topology = _topology(spec, each, grpc, shm, target)
    by_rack = [topology.hosts_of(name) for name in dict.fromkeys(host.switch for host in topology.hosts)]
    shares = [workers * (rack + 1) // racks - workers * rack // racks for rack in range(racks)]
    own = [hosts[:share] for hosts, share in zip(by_rack, shares, strict=True)]
    cables = tuple(
        Cable(f"leaf{leaf}", each + spine, f"spine{spine}", leaf)
        for leaf in range(1, racks + 1)
        for spine in range(1, spec.shape.spines + 1)
    )
    return NetworkPlan(
        spec=spec,
        topology=topology,
        workers=tuple(host for hosts in own for host in hosts),
        background=tuple(host for hosts in by_rack for host in hosts[each - spec.extra_hosts :]),
        victims=tuple(hosts[0] for hosts in own) if spec.extra_hosts else (),
        cables=cables,
    )


def over_ip(plan: NetworkPlan, secret: str, udp: int, at: str = "") -> NetworkPlan:
    """Return a plan of one switch whose hosts claim their ports over an IP network.

    Args:
        secret: the file of the switch's secret.
        udp: the first of its UDP ports, one a host.
        at: its address, as hosts reach it; "": that of the controller.
    """
    from weir.controller.wiring import HUB_PROGRAM  # and with it pydantic

    (switch,) = plan.topology.switches
    claims = switch.model_dump() | {"program": HUB_PROGRAM, "claimed": {"secret": secret, "host": at}}
    hosts = {
        host.name: host.model_copy(update={"claimed": udp + number})
        for number, host in enumerate(plan.topology.hosts)
    }
    return replace(
        plan,
        topology=plan.topology.model_copy(
            update={"switches": (type(switch).model_validate(claims),), "hosts": tuple(hosts.values())}
        ),
        workers=tuple(hosts[host.name] for host in plan.workers),
    )


def switch_ports(
    plan: NetworkPlan,
    attached: Callable[["Host"], str],
    ends: "Callable[[Cable], tuple[str, str]]",
) -> dict[str, list[str]]:
    """Return the ``--port`` options of each soft switch, by its name.

    attached: what a host's port is: "shm", or an interface. ends: the same for a cable's ports, of its leaf
    and of its spine.
    """
    options = plan.spec.port_options
    ports: dict[str, list[str]] = {switch.name: [] for switch in plan.topology.switches}
    for host in plan.topology.hosts:
        ports[host.switch].append(f"{host.port}={attached(host)}{options}")
    for cable in plan.cables:
        leaf, spine = ends(cable)
        ports[cable.leaf].append(f"{cable.leaf_port}={leaf}{options}")
        ports[cable.spine].append(f"{cable.spine_port}={spine}{options}")
    return ports


def udp_tunnels(ports: Iterator[int]) -> "Callable[[Cable], tuple[str, str]]":
    """Return the ends of cables that are UDP tunnels over loopback.

    Args:
        ports: free UDP ports, two for each cable.
    """

    def ends(_cable: Cable) -> tuple[str, str]:
        low, high = f"{LOOPBACK}:{next(ports)}", f"{LOOPBACK}:{next(ports)}"
        return f"udp:{low}:{high}", f"udp:{high}:{low}"

    return ends


def incast(plan: NetworkPlan, *, only: str | None = None) -> IncastSpec | None:
    """Return the traffic of a plan's background hosts; None when it has none. ``only``: that host's part."""
    if not plan.background or plan.spec.rate_bps is None:
        return None
    senders = tuple(
        Sender(
            ip=host.ip,
            mac=host.mac,
            shm=host.shm,
            port=host.port,
            victims=tuple(
                Victim(ip=v.ip, mac=v.mac if v.switch == host.switch else plan.gateway(host)[0])
                for v in plan.victims
            ),
        )
        for host in plan.background
        if only in (None, host.name)
    )
    return IncastSpec(
        senders=senders,
        hosts=len(plan.background),
        rate_bps=plan.spec.rate_bps,
        load=plan.spec.load,
        dscp=plan.spec.dscp,
    )


def _topology(
    spec: NetworkSpec,
    hosts_per_rack: int,
    grpc: Callable[[str], str],
    shm: Callable[[str], str] | None,
    target: "Target",
) -> "Topology":
    from weir.controller.topology import Topology, leaf_spine, single_switch

    if spec.shape.single:
        memory = shm("s1") if shm else None
        # Links have an MTU of 1,500, and frames that wait in queues are copied whole: no wide packets there.
        wide = memory is not None and spec.rate_bps is None
        made = single_switch(hosts_per_rack, grpc("s1"), memory, target=target, wide=wide)
    else:
        made = leaf_spine(
            spec.shape.racks, spec.shape.spines, hosts_per_rack, grpc=grpc, shm=shm, target=target
        )
    losses = [*_losses(made, spec.loss), *spec.qos.get("losses", ())]
    qos = {**made.qos.model_dump(), **spec.qos, "losses": losses}
    return Topology.model_validate({**made.model_dump(), "qos": qos})


def _losses(topology: "Topology", probability: float) -> list[dict[str, Any]]:
    """Return the losses of all links, once in each direction: where a switch sends, and where a host's
    packets come in.
    """
    if not probability:
        return []
    coming = [(host.switch, host.port, "ingress") for host in topology.hosts]
    going = [(host.switch, host.port, "egress") for host in topology.hosts]
    between = [(end.switch, end.port, "egress") for link in topology.links for end in link.ends]
    return [
        {"switch": switch, "port": port, "direction": direction, "probability": probability}
        for switch, port, direction in (*coming, *going, *between)
    ]
