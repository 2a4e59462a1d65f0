# SPDX-License-Identifier: Apache-2.0
"""The topology file (YAML or JSON): switches, the hosts on their ports, and the links between them.

.. code-block:: yaml

    switches:
      - name: s1
        device_id: 1
        grpc: unix:/run/weir/s1.sock
        program: weir_v1model
        target: soft
        aggregation: {mac: "02:00:00:00:00:fe", ip: 10.0.0.254}
    hosts:
      - {name: h1, switch: s1, port: 1, mac: "02:00:00:00:00:01", ip: 10.0.0.1, shm: /dev/shm/weir-s1}
    links:                             # only where there are several racks
      - {ends: [leaf1:5, spine1:1]}
    qos: {}                            # see controller.qos

Roles follow from the links. A linked switch with hosts is a leaf; one without is a spine, if some leaf is
linked to it, else a core. In two tiers every leaf has one link to every spine. In three, leaves that share
spines are a
pod: every leaf has one link to every spine of its pod, and every spine to every core. There are no other
links.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from softp4.native.json_text import parse_json
from weir.controller.qos import Qos
from weir.controller.tiers import (
    PORT_REMEDY,
    link_problems,
    qos_problems,
    recirculation_problems,
    repeated,
    tier_problems,
)
from weir.controller.topology_errors import sentences
from weir.controller.wiring import (
    V1MODEL_PROGRAM,
    WIDE_PROGRAM,
    Aggregation,
    End,
    Host,
    Link,
    Switch,
    SwitchTls,
    Target,
    Wiring,
)
from weir.wire.definition import SPINE_CLASSES

MAX_HOSTS = 253  # what a rack can number within its /24 beside the aggregation address
MAX_RACKS = 255  # what leaf_spine can number


class TopologyError(ValueError):
    """A topology file that cannot be used. The message names the file, the place in it, and what is wrong."""


class Topology(Wiring):
    """A network that is checked: what is there is there once, and links make two tiers, or three."""

    @model_validator(mode="after")
    def _consistent(self) -> "Topology":
        problems = [
            *repeated(self.switches, "switch name", lambda s: s.name),
            *repeated(self.switches, "switch address and device_id", lambda s: (s.grpc, s.device_id)),
            *repeated(self.hosts, "host name", lambda h: h.name),
            *repeated(self.hosts, "switch port", lambda h: (h.switch, h.port), PORT_REMEDY),
            *repeated(self.hosts, "MAC address", lambda h: h.mac),
            *repeated(self.hosts, "IP address", lambda h: h.ip),
            *repeated(
                [host for host in self.hosts if host.claimed is not None],
                "claimed UDP port",
                lambda h: (h.switch, h.claimed),
            ),
        ]
        known = {switch.name for switch in self.switches}
        problems += [
            f"host {host.name} is on switch {host.switch!r}, which is not listed"
            f" (known: {', '.join(sorted(known))})"
            for host in self.hosts
            if host.switch not in known
        ]
        claimable = {switch.name for switch in self.switches if switch.claimed is not None}
        problems += [
            f"host {host.name} claims its port, and switch {host.switch} has no secret for that: give the "
            "switch claimed: {secret: FILE}"
            for host in self.hosts
            if host.claimed is not None and host.switch in known - claimable
        ]
        problems += [*qos_problems(self), *recirculation_problems(self)]
        if self.links:
            problems += link_problems(self) or tier_problems(self)
        for switch in self.switches:
            for host in self.hosts:
                if host.mac == switch.aggregation.mac or host.ip == switch.aggregation.ip:
                    problems.append(
                        f"host {host.name} has the aggregation address of switch {switch.name}"
                        f" ({switch.aggregation.mac}, {switch.aggregation.ip})"
                    )
        if problems:
            raise ValueError("; ".join(problems))
        return self


def load_topology(path: Path) -> Topology:
    """Read and check a topology file. Paths of other files are as written: see :func:`with_files`.

    Raises:
        TopologyError: unreadable, not YAML/JSON, or not a valid topology; all problems in one message.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise TopologyError(f"cannot read topology file {path}: {error.strerror}") from None
    try:
        data = parse_by_name(text, path)
    except ValueError as error:
        raise TopologyError(str(error)) from None
    if not isinstance(data, dict):
        raise TopologyError(f"{path}: a topology is a mapping with 'switches' and 'hosts'")
    try:
        return Topology.model_validate(data)
    except ValidationError as error:
        found = "\n".join(f"  {sentence}" for sentence in sentences(error, Topology, data))
        raise TopologyError(f"{path} is not a valid topology:\n{found}") from None


def parse_by_name(text: bytes, path: Path) -> Any:
    """Return the value of a text: JSON if the file's name ends in .json, else YAML.

    A plain installation lacks PyYAML.

    Args:
        text: Content of the file.
        path: The file, for its name and for messages.

    Raises:
        ValueError: The text is neither, or PyYAML is not installed; the message names the file.
    """
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        return parse_json(text) if kind == "JSON" else _parse_yaml(text)
    except ModuleNotFoundError:
        raise ValueError(
            f"{path} is YAML, but PyYAML is not installed. Run pip install 'weir-ina[controller]', or "
            f"write the topology as JSON in a file that ends in .json"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not {kind}: {error}") from None


def _parse_yaml(text: bytes) -> Any:
    import yaml

    try:
        return yaml.safe_load(text.decode())
    except (yaml.YAMLError, LookupError, OverflowError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None  # the latter of values that YAML's parser does not expect
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def with_files(topology: Topology, path: Path) -> Topology:
    """Return the topology of the file ``path`` with the files that it names where they are: relative to it.

    Raises:
        TopologyError: a TLS file that cannot be read; all of them in one message.
    """
    problems: list[str] = []
    switches = tuple(_with_files(switch, path.parent, problems) for switch in topology.switches)
    if problems:
        found = "\n".join(f"  {problem}" for problem in problems)
        raise TopologyError(f"{path}: TLS files, relative to its folder, cannot be read:\n{found}")
    return topology.model_copy(update={"switches": switches})


def _with_files(switch: Switch, folder: Path, problems: list[str]) -> Switch:
    changed: dict[str, Any] = {}
    if switch.tls is not None:
        changed["tls"] = _found(switch.tls, folder, switch.name, problems)
    if switch.claimed is not None:
        secret = folder / switch.claimed.secret
        changed["claimed"] = switch.claimed.model_copy(update={"secret": secret})
    return switch.model_copy(update=changed)


def _found(tls: SwitchTls, folder: Path, switch: str, problems: list[str]) -> SwitchTls:
    """Return the files' paths below ``folder``; add to ``problems`` those that cannot be read."""
    paths = {
        name: folder / path for name in ("ca", "cert", "key") if (path := getattr(tls, name)) is not None
    }
    for name, path in paths.items():
        try:
            path.open("rb").close()
        except OSError as error:
            problems.append(f"switch {switch}, {name}: {path}: {error.strerror}")
    return tls.model_copy(update=paths)


def single_switch(
    workers: int,
    grpc: str,
    shm: str | None = None,
    *,
    name: str = "s1",
    target: Target = "bmv2",
    wide: bool = False,
) -> Topology:
    """Return one switch with hosts h1 to h<workers> on ports 1 to <workers>, addresses 10.0.0.<i>.

    wide: its program takes wide packets.
    """
    if not 1 <= workers <= MAX_HOSTS:
        raise TopologyError(f"a single switch has 1 to {MAX_HOSTS} hosts, not {workers}")
    hosts = tuple(
        Host(name=f"h{i}", switch=name, port=i, mac=f"02:00:00:00:00:{i:02x}", ip=f"10.0.0.{i}", shm=shm)
        for i in range(1, workers + 1)
    )
    program = WIDE_PROGRAM if wide else V1MODEL_PROGRAM
    return Topology(switches=(Switch(name=name, grpc=grpc, target=target, program=program),), hosts=hosts)


def leaf_spine(
    racks: int,
    spines: int,
    hosts_per_rack: int,
    *,
    grpc: Callable[[str], str] = "unix:/run/weir/{}.sock".format,
    shm: Callable[[str], str] | None = None,
    target: Target = "soft",
    qos: Qos | None = None,
) -> Topology:
    """Return two tiers: every leaf linked to every spine, hosts h1.. numbered rack by rack.

    Rack r (from 1) is 10.0.r.0/24: host i of it is 10.0.r.i on port i of leaf r, whose aggregation address is
    10.0.r.254. Leaf ports after the hosts' lead to spine 1, 2, ...; port r of a spine leads to leaf r; spine
    s has address 10.1.s.254.

    Args:
        grpc: P4Runtime address of the switch of a name.
        shm: directory of the shared-memory ports of the leaf of a name; None: there are none.

    Raises:
        TopologyError: more of something than can be numbered.
    """
    return _clos(1, racks, spines, 0, hosts_per_rack, grpc, shm, target, qos)


def leaf_spine_core(
    pods: int,
    racks: int,
    spines: int,
    cores: int,
    hosts_per_rack: int,
    *,
    grpc: Callable[[str], str] = "unix:/run/weir/{}.sock".format,
    shm: Callable[[str], str] | None = None,
    target: Target = "soft",
    qos: Qos | None = None,
) -> Topology:
    """Return three tiers: ``pods`` pods of ``racks`` leaves and ``spines`` spines each, joined by ``cores``
    cores.

    Names, ports and addresses are those of :func:`leaf_spine`, leaves and spines numbered pod by pod. A
    spine's ports after its leaves' lead to core 1, 2, ...; port s of a core leads to spine s; core c has
    address 10.2.c.254.

    Raises:
        TopologyError: more of something than can be numbered.
    """
    return _clos(pods, racks, spines, cores, hosts_per_rack, grpc, shm, target, qos)


def _clos(
    pods: int,
    racks: int,
    spines: int,
    cores: int,
    hosts_per_rack: int,
    grpc: Callable[[str], str],
    shm: Callable[[str], str] | None,
    target: Target,
    qos: Qos | None,
) -> Topology:
    """Return a folded Clos network; without cores, of one pod."""
    where = "three tiers have" if cores else "a leaf-spine topology has"
    limits = {
        "racks": (pods * racks, MAX_RACKS, where),
        "spines": (spines, SPINE_CLASSES, "a pod has" if cores else where),
        "spines in all": (pods * spines, MAX_RACKS, where),
        "hosts": (hosts_per_rack, MAX_HOSTS, "a rack has"),
    }
    if cores:
        limits["cores"] = (cores, SPINE_CLASSES, where)
    for what, (count, limit, has) in limits.items():
        if not 1 <= count <= limit:
            raise TopologyError(f"{has} 1 to {limit} {what}, not {count}")

    def switch(name: str, tier: int, number: int) -> Switch:
        own = Aggregation(mac=f"02:00:00:{tier:02x}:{number:02x}:fe", ip=f"10.{tier}.{number}.254")
        return Switch(name=name, grpc=grpc(name), target=target, aggregation=own)

    def numbered(what: str, count: int) -> list[str]:
        return [f"{what}{number}" for number in range(1, count + 1)]

    leaf_names, spine_names = numbered("leaf", pods * racks), numbered("spine", pods * spines)
    core_names = numbered("core", cores)
    within = [
        Link(
            ends=(
                End(switch=leaf_names[pod * racks + r], port=hosts_per_rack + s + 1),
                End(switch=spine_names[pod * spines + s], port=r + 1),
            )
        )
        for pod in range(pods)
        for r in range(racks)
        for s in range(spines)
    ]
    between = [
        Link(ends=(End(switch=spine, port=racks + c), End(switch=core, port=s)))
        for s, spine in enumerate(spine_names, 1)
        for c, core in enumerate(core_names, 1)
    ]
    return Topology(
        switches=tuple(
            switch(name, tier, number)
            for tier, names in enumerate((leaf_names, spine_names, core_names))
            for number, name in enumerate(names, 1)
        ),
        hosts=tuple(
            Host(
                name=f"h{(r - 1) * hosts_per_rack + i}",
                switch=leaf,
                port=i,
                mac=f"02:00:00:00:{r:02x}:{i:02x}",
                ip=f"10.0.{r}.{i}",
                shm=shm(leaf) if shm else None,
            )
            for r, leaf in enumerate(leaf_names, 1)
            for i in range(1, hosts_per_rack + 1)
        ),
        links=(*within, *between),
        qos=qos or Qos(),
    )
