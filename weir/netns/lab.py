# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine with real links between them: network namespaces joined by veth pairs.

One namespace per host, one for all switches, and a veth pair from each host to its switch, shaped when
asked. In a ``lab`` the switch program, BMv2 or the soft switch, is to run in the switches' namespace and to
forward everything; hosts reach nothing else. Racks and spines, losses, and background traffic are as in
weir.network: the same network that a local cluster builds, but with kernels at its ends. In a
``bridged_lab`` the kernel's own bridge forwards: the network that peers over TCP are fastest on. In a lab
that is also ``bridged`` each host has a link of either kind.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from softp4.runtime.queueing import parse_rate
from weir.controller.topology import Topology
from weir.controller.wiring import Host, Target
from weir.netns.bpf import Side, disturb
from weir.netns.namespace import Namespace, NamespaceError
from weir.netns.netlink import NetlinkError, TokenBucket
from weir.netns.offloads import ALL, BUT_UDP, offloads_off
from weir.network import Cable, NetworkPlan, NetworkSpec, make_plan
from weir.wire.definition import BEST_EFFORT_DSCP

_GRPC_PORT: Final = 9559  # and up, within the switches' own namespace
HUB_ADDRESS: Final = "10.253.0.1"
"""Of the machine with the switch, in a lab with IP."""

_LEAST_TIMEOUT: Final = Path("/proc/sys/net/ipv4/tcp_rto_min_us")
_BRIDGE: Final = "bridge"
_CORE: Final = "core"  # the bridge between the racks' bridges
_BRIDGED_LINK: Final = "eth1"  # of hosts whose eth0 leads to a switch program


@dataclass(frozen=True)
class Lab:
    """A made set of namespaces: ``switch`` and one per host, with the switch's interface for each host."""

    switch: Namespace
    plan: NetworkPlan
    namespaces: tuple[Namespace, ...]
    interfaces: tuple[str, ...]

    @property
    def topology(self) -> Topology:
        """Return what is where."""
        return self.plan.topology

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Hosts, in the order of ``namespaces``: workers and background hosts, rack by rack."""
        return self.topology.hosts

    def at_switch(self) -> list[str]:
        """Return what to put before a command that is to run where the switch is."""
        return self.switch.prefix

    def at_host(self, index: int) -> list[str]:
        """Return what to put before a command that is to run on host ``index`` (from 0)."""
        return self.namespaces[index].prefix

    def at_worker(self, rank: int) -> list[str]:
        """Return what to put before a command that is to run on the host of that rank."""
        return self.at_host(self.hosts.index(self.plan.workers[rank]))

    def environment(self) -> dict[str, str]:
        """Return environment variables by which the workers of a job find one another over TCP."""
        return {"MASTER_ADDR": self.plan.workers[0].ip, "GLOO_SOCKET_IFNAME": "eth0"}

    def tcp_timeout(self, seconds: float) -> None:
        """Let TCP on all hosts wait for an answer so long at least: a sysctl of Linux 6.11 and later.

        Raises:
            NamespaceError: this kernel has no such setting.
        """
        for namespace in self.namespaces:
            try:
                namespace.call(partial(_LEAST_TIMEOUT.write_text, str(round(1e6 * seconds))))
            except OSError as error:
                raise NamespaceError(f"TCP's least time-out: {error}") from error

    def bridged_environment(self) -> dict[str, str]:
        """Return the same for the bridge of a lab that is also ``bridged``."""
        first = self.hosts.index(self.plan.workers[0])
        return {"MASTER_ADDR": _bridged_address(first), "GLOO_SOCKET_IFNAME": _BRIDGED_LINK}


@contextlib.contextmanager
def lab(
    workers: int,
    *,
    switch: Target = "soft",
    rate: str | None = None,
    network: NetworkSpec | None = None,
    bridged: bool = False,
    batches: bool = False,
    ip: bool = False,
) -> Iterator[Lab]:
    """Make a namespace for every host and one for the switches, which end with the block.

    Args:
        workers: how many hosts take part in the job.
        switch: which switch is to run; no process is started yet.
        rate: for example "200mbit"; both directions of every link, of hosts and between switches, are shaped
            to it with a token bucket (burst 96 KiB, queue of 50 ms).
        network: shape, rates, losses and background hosts; with its ``rate_bps`` only what hosts send is
            shaped by a token bucket, the rest by the switches' queues.
        bridged: each host gets a second link, shaped by token buckets in both directions, to a kernel bridge
            that joins all of these, with the offloads on: for a peer over TCP in the same processes.
        batches: what runs where the switches are segments GSO batches of UDP datagrams and completes
            checksums, so that these offloads stay on.
        ip: each link is a network of its own, and hosts reach HUB_ADDRESS, where the switch is, by it: for
            ports that they claim over IP. The hosts' addresses are not those of the topology.

    Raises:
        NamespaceError: this process cannot make them.
        ValueError: the workers do not fit the network, or the rate is none.
    """
    network = network or NetworkSpec()
    if switch != "soft" and (network.rate_bps or not network.shape.single):
        raise NamespaceError("only the soft switch has shaped ports, and runs more than one switch")
    bucket = TokenBucket(parse_rate(rate)) if rate else None
    uplink = TokenBucket(network.host_rate_bps) if network.host_rate_bps else None
    with _hosts(_plan(workers, switch, network)) as made:
        ends = zip(made.hosts, made.namespaces, made.interfaces, strict=True)
        for number, (host, namespace, interface) in enumerate(ends):
            own = f"10.254.{number}.2" if ip else host.ip
            _join(made, interface, namespace, "eth0", host.mac, own, down=bucket, up=bucket or uplink)
            for where, name in ((made.switch, interface), (namespace, "eth0")):
                where.call(partial(offloads_off, name, BUT_UDP if batches else ALL))
            if not network.shape.single or network.loss:
                _neighbours(made, host, namespace)
        for cable in made.plan.cables:
            _connect(made, cable_ends(cable), bucket, BUT_UDP if batches else ALL)
        if bridged:
            _bridge(made, _BRIDGED_LINK, bucket or uplink, bucket or uplink)
        if ip:
            _route(made)
        yield made


@contextlib.contextmanager
def bridged_lab(
    workers: int, *, rate: str | None = None, network: NetworkSpec | None = None
) -> Iterator[Lab]:
    """Make a lab whose switches are kernel bridges that already forward, the hosts' offloads left on.

    The links and their token buckets are those of ``lab``, and so are names and addresses; arguments and
    errors, too. With a ``network`` every rack has a bridge, and its spines are one, to which each rack has a
    single link as fast as all of its cables: traffic that is spread without any collision. Every link loses
    what ``network`` says, packet by packet; queues are as long, and TCP passes all else in them, as Weir's
    packets do in the soft switch, unless the background traffic has a class of Weir's. It is not started yet.
    """
    network = network or NetworkSpec(rate_bps=parse_rate(rate) if rate else None)
    down, up = (TokenBucket(rate) if rate else None for rate in (network.rate_bps, network.host_rate_bps))
    with _hosts(_plan(workers, "soft", network)) as made:
        if network.shape.single and not network.loss and not made.plan.background:
            _bridge(made, "eth0", down, up)
            yield made
            return
        with contextlib.ExitStack() as programs:
            _bridged_racks(made, programs)
            yield made


def _bridged_racks(made: Lab, programs: contextlib.ExitStack) -> None:
    """Join the hosts of each rack by a bridge, and the racks by another one, over links with faults."""
    spec, links = made.plan.spec, made.switch.links

    def disturbed(interface: str, *sides: Side, times: int = 1) -> None:
        """Shape an interface of a bridge, and lose packets there."""
        if spec.rate_bps:
            links.shape(interface, TokenBucket(times * spec.rate_bps))
            links.prioritise(interface, times * spec.depth)
        for side in sides:
            try:
                held = made.switch.call(
                    partial(disturb, interface, side, spec.loss, together=spec.dscp != BEST_EFFORT_DSCP)
                )
            except OSError as error:
                raise NamespaceError(f"a bridge whose links lose packets: {error}") from error
            programs.callback(os.close, held)

    bridges = dict.fromkeys(host.switch for host in made.hosts)
    for name in (*bridges, *([] if spec.shape.single else [_CORE])):
        links.add_bridge(name)
        links.set(name, up=True)
    up = TokenBucket(spec.host_rate_bps) if spec.host_rate_bps else None
    for host, namespace, port in zip(made.hosts, made.namespaces, made.interfaces, strict=True):
        _join(made, port, namespace, "eth0", host.mac, host.ip, prefix=16, down=None, up=up)
        # Losses are of single packets, so the sender's kernel must segment batches before its link, not
        # after it.
        namespace.call(partial(offloads_off, "eth0", ("tso",)))
        links.set(port, bridge=host.switch)
        disturbed(port, Side.RECEIVED, Side.SENT)
    for name in bridges if not spec.shape.single else ():
        ends = {f"{name}-up": name, f"{name}-down": _CORE}
        links.add_veth(*ends)
        for end, bridge in ends.items():
            links.set(end, bridge=bridge, up=True)
            disturbed(end, Side.SENT, times=spec.shape.spines)


def _bridge(made: Lab, name: str, down: TokenBucket | None, up: TokenBucket | None) -> None:
    """Join all hosts' interfaces of that name by a kernel bridge; both ends send through token buckets."""
    links = made.switch.links
    links.add_bridge(_BRIDGE)
    links.set(_BRIDGE, up=True)
    for index, (host, namespace) in enumerate(zip(made.hosts, made.namespaces, strict=True)):
        port = made.interfaces[index]
        if name == "eth0":
            _join(made, port, namespace, name, host.mac, host.ip, down=down, up=up)
        else:
            port = f"bridge-{port}"
            _join(made, port, namespace, name, None, _bridged_address(index), down=down, up=up)
        links.set(port, bridge=_BRIDGE)


def _bridged_address(host: int) -> str:
    """Return the address of a host's second link, in a network of its own."""
    return f"10.255.0.{1 + host}"


def _plan(workers: int, switch: Target, network: NetworkSpec) -> NetworkPlan:
    """Name everything; switches serve P4Runtime within their own namespace."""
    addresses: dict[str, str] = {}

    def grpc(name: str) -> str:
        return addresses.setdefault(name, f"127.0.0.1:{_GRPC_PORT + len(addresses)}")

    return make_plan(network, workers, grpc=grpc, target=switch)


@contextlib.contextmanager
def _hosts(plan: NetworkPlan) -> Iterator[Lab]:
    """Yield the namespaces of a plan, not joined yet."""
    with contextlib.ExitStack() as stack:
        try:
            switch, *hosts = (stack.enter_context(Namespace()) for _ in range(1 + len(plan.topology.hosts)))
            interfaces = tuple(f"to-{host.name}" for host in plan.topology.hosts)
            yield Lab(switch, plan, tuple(hosts), interfaces)
        except NetlinkError as error:
            raise NamespaceError(str(error)) from error


def _join(
    made: Lab,
    port: str,
    namespace: Namespace,
    name: str,
    mac: str | None,
    ip: str,
    *,
    prefix: int = 24,
    down: TokenBucket | None,
    up: TokenBucket | None,
) -> None:
    """Make a veth pair: ``port`` at the switch, ``name`` at the host; shape what either sends."""
    made.switch.links.add_veth(port, name, there=namespace.file)
    namespace.links.set(name, mac=mac)
    namespace.links.add_address(name, f"{ip}/{prefix}")
    for links, interface, bucket in ((made.switch.links, port, down), (namespace.links, name, up)):
        links.set(interface, up=True)
        if bucket:
            links.shape(interface, bucket)


def cable_ends(cable: Cable) -> tuple[str, str]:
    """Return the names of the interfaces that a cable joins, of its leaf and of its spine."""
    return f"{cable.leaf}-{cable.spine}", f"{cable.spine}-{cable.leaf}"


def _connect(made: Lab, ends: tuple[str, str], bucket: TokenBucket | None, off: Sequence[str]) -> None:
    """Join two switches by a veth pair, and shape what either sends."""
    links = made.switch.links
    links.add_veth(*ends)
    for end in ends:
        links.set(end, up=True)
        if bucket:
            links.shape(end, bucket)
        made.switch.call(partial(offloads_off, end, off))


def _route(made: Lab) -> None:
    """Give each link a network of its own, between its host and the switch's kernel."""
    made.switch.links.add_address("lo", f"{HUB_ADDRESS}/32")
    for index, (namespace, interface) in enumerate(zip(made.namespaces, made.interfaces, strict=True)):
        made.switch.links.add_address(interface, f"10.254.{index}.1/24")
        namespace.links.set_gateway("eth0", f"10.254.{index}.1")


def _neighbours(made: Lab, host: Host, namespace: Namespace) -> None:
    """Set static neighbours, as lost ARP packets cost seconds, and the leaf as the way to other racks."""
    mac, ip = made.plan.gateway(host)
    rack = [(other.ip, other.mac) for other in made.topology.hosts_of(host.switch) if other != host]
    for address, hardware in ((ip, mac), *rack):
        namespace.links.set_neighbour("eth0", address, hardware)
    if not made.plan.spec.shape.single:
        namespace.links.set_gateway("eth0", ip)
