# SPDX-License-Identifier: Apache-2.0
"""The problems of a topology, in sentences: things used twice, links that do not make tiers."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from ipaddress import IPv4Address
from itertools import combinations
from typing import Final, Protocol, TypeVar

from weir.controller.wiring import AGAIN_PORT, PIPE_PORTS, Link, Wiring
from weir.wire.definition import SPINE_CLASSES

PORT_REMEDY: Final = (
    ": give each a port of its own, which is a network card of the switch's, or a tunnel where several hosts"
    " are behind one card (docs/guides/three-boxes.md)"
)


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


def qos_problems(topology: Wiring) -> Iterator[str]:
    """Yield the places in the ``qos`` section that the topology does not have."""
    known = {switch.name: switch for switch in topology.switches}
    for kind, places in (("losses", topology.qos.losses), ("queues", topology.qos.queues)):
        for place in places:
            if place.switch not in known:
                yield f"qos.{kind}: switch {place.switch!r} is not listed (known: {', '.join(sorted(known))})"
            elif kind == "losses" and known[place.switch].bfrt:
                yield f"qos.losses: switch {place.switch} is a Tofino, and its program has no drop simulator"
            elif kind == "queues" and known[place.switch].thrift is None:
                yield (
                    f"qos.queues: switch {place.switch} has no thrift address: rates and depths of a soft "
                    f"switch are options of its ports: weir switch --port {place.port}=...,rate=...,depth=..."
                )


def recirculation_problems(topology: Wiring) -> Iterator[str]:
    """Yield the ports that the topology uses and a Tofino needs for what passes it twice."""
    for switch in topology.switches:
        hosts = [host.port for host in topology.hosts_of(switch.name)]
        for port in (*hosts, *(port for port, _ in topology.neighbours(switch.name))):
            if switch.recirculates and port % PIPE_PORTS == AGAIN_PORT:
                yield f"switch {switch.name} has lanes: {switch.lanes}, for which it needs port {port} itself"


def link_problems(topology: Wiring) -> list[str]:
    """Return the links that cannot be, whatever the roles."""
    known = {switch.name for switch in topology.switches}
    users: dict[tuple[str, int], list[str]] = {}
    for host in topology.hosts:
        users.setdefault((host.switch, host.port), []).append(f"host {host.name}")
    pairs: dict[frozenset[str], list[Link]] = {}
    problems = []
    for link in topology.links:
        names = frozenset(end.switch for end in link.ends)
        problems += [
            f"link {link}: switch {name!r} is not listed (known: {', '.join(sorted(known))})"
            for name in sorted(names - known)
        ]
        if len(names) == 1:
            problems.append(f"link {link} joins a switch with itself")
        pairs.setdefault(names, []).append(link)
        for end in link.ends:
            users.setdefault((end.switch, end.port), []).append(f"link {link}")
    problems += [
        f"{' and '.join(sorted(names))} have {len(links)} links: one is supported"
        for names, links in pairs.items()
        if len(links) > 1 and len(names) > 1
    ]
    problems += [
        f"switch port {switch} / {port} is used {len(them)} times (by {', '.join(them)}){PORT_REMEDY}"
        for (switch, port), them in users.items()
        if len(them) > 1 and any(user.startswith("link") for user in them)
    ]
    return problems


_TIERS = ("leaves (both have hosts)", "spines (neither has hosts)", "cores (neither has hosts)")


def tier_problems(topology: Wiring) -> list[str]:
    """Return the reasons why sound links are not two or three tiers with addresses of their own."""
    tiers, pods = topology.tiers(), topology.pods()
    cores = [core.name for core in topology.cores]
    linked = {frozenset(end.switch for end in link.ends) for link in topology.links}
    problems = []
    for link in topology.links:
        one, other = (tiers[end.switch] for end in link.ends)
        if abs(one - other) != 1:
            problems.append(
                f"link {link} joins two {_TIERS[one]}: "
                "links are between a leaf and a spine, or a spine and a core"
            )
    spines = [spine.name for spine in topology.spines]
    here = " of its pod" if cores else ""
    for pod in pods:
        # Without cores there is one pod, all of it; with cores, pods are what links make them.
        wanted = pod.spines if cores else spines
        problems += [
            f"{leaf} has no link to {spine}: every leaf needs one to every spine{here}"
            for leaf in pod.leaves
            for spine in wanted
            if frozenset((leaf, spine)) not in linked
        ]
        problems += [
            f"{leaf} has no link to a spine: every leaf needs one"
            for leaf in pod.leaves
            if not pod.spines and cores
        ]
        if len(pod.spines) > SPINE_CLASSES:
            problems.append(
                f"there are {len(pod.spines)} spines{' in one pod' if cores else ''}:"
                f" slots are spread over at most {SPINE_CLASSES}"
            )
    problems += [
        f"{spine} has no link to {core}: every spine needs one to every core"
        for spine in spines
        for core in cores
        if frozenset((spine, core)) not in linked
    ]
    problems += [
        f"{core.name} is a core, which program {core.program} cannot be: it has one group for all slots"
        for core in topology.cores
        if core.bfrt
    ]
    if len(cores) > SPINE_CLASSES:
        problems.append(f"there are {len(cores)} cores: slots are spread over at most {SPINE_CLASSES}")
    problems += repeated(topology.switches, "aggregation MAC address", lambda s: s.aggregation.mac)
    problems += repeated(topology.switches, "aggregation IP address", lambda s: s.aggregation.ip)
    problems += [
        f"host {host.name} ({host.ip}) is outside {leaf.prefix}, the subnet of its rack {leaf.name}"
        for leaf in topology.leaves
        for host in topology.hosts_of(leaf.name)
        if IPv4Address(host.ip) not in leaf.prefix
    ]
    problems += [
        f"racks {one.name} ({one.prefix}) and {two.name} ({two.prefix}) overlap: each needs its own subnet"
        for one, two in combinations(topology.leaves, 2)
        if one.prefix.overlaps(two.prefix)
    ]
    return problems


def repeated(
    items: Iterable[_Named], what: str, key: Callable[[_Named], Hashable], remedy: str = ""
) -> list[str]:
    """Return a sentence for each value of ``key`` that several items have; it ends with the remedy."""
    names: dict[Hashable, list[str]] = {}
    for item in items:
        names.setdefault(key(item), []).append(item.name)
    return [
        f"{what} {_text(value)} is used {len(users)} times (by {', '.join(users)}){remedy}"
        for value, users in names.items()
        if len(users) > 1
    ]


def _text(value: Hashable) -> str:
    return " / ".join(map(str, value)) if isinstance(value, tuple) else str(value)
