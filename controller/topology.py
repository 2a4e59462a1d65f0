# SPDX-License-Identifier: Apache-2.0
"""What is where: switches, and the hosts on their ports. Read from a YAML or JSON file.

.. code-block:: yaml

    switches:
      - name: s1
        device_id: 1
        grpc: 127.0.0.1:9559
        program: weir_v1model
        target: soft
        aggregation: {mac: "02:00:00:00:00:fe", ip: 10.0.0.254}
    hosts:
      - {name: h1, switch: s1, port: 1, mac: "02:00:00:00:00:01", ip: 10.0.0.1, shm: /dev/shm/weir-s1}
"""

import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from controller.addresses import Ip, Mac, ServiceAddress
from wire.definition import SLOT_LANES

DROP_PORT = 511  # v1model's bit<9> drop port; not a place to attach a host
Target = Literal["soft", "bmv2"]
HEADROOM: dict[Target, int] = {"soft": 0xFFFF, "bmv2": 512}
LANE_BYTES = 4
MAX_HOSTS = 253  # what single_switch can number within one /24 beside the aggregation address

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
_Named = TypeVar("_Named", "Switch", "Host")


class TopologyError(ValueError):
    """A topology file that cannot be used. The message names the file, the place in it, and what is wrong."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Aggregation(_Model):
    """Where workers send contributions to: addresses the switch answers for itself."""

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


class Switch(_Model):
    """One switch and how to program it.

    ``target``: "soft" for the soft switch; "bmv2", the careful default, for BMv2, which can add no more than
    512 bytes to a packet: its workers send zero blocks that others have.
    """

    name: Name
    device_id: int = Field(default=1, ge=1, lt=1 << 64)
    grpc: ServiceAddress
    program: Name = "weir_v1model"
    target: Target = "bmv2"
    aggregation: Aggregation = Aggregation()
    tls: SwitchTls | None = None

    @property
    def headroom(self) -> int:
        """Bytes by which the switch can make a packet longer."""
        return HEADROOM[self.target]

    @property
    def fills(self) -> bool:
        """Must workers send requested zero blocks too, so that no result outgrows its packet?"""
        return self.headroom < SLOT_LANES * LANE_BYTES


class Host(_Model):
    """One host on one switch port. ``shm``: directory of the switch's shared-memory ports, if it has."""

    name: Name
    switch: Name
    port: int = Field(ge=1, lt=DROP_PORT)
    mac: Mac
    ip: Ip
    shm: str | None = None


class Topology(_Model):
    """All switches and hosts, checked against each other."""

    switches: tuple[Switch, ...] = Field(min_length=1)
    hosts: tuple[Host, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Topology":
        problems = [
            *_repeated(self.switches, "switch name", lambda s: s.name),
            *_repeated(self.switches, "switch address and device_id", lambda s: (s.grpc, s.device_id)),
            *_repeated(self.hosts, "host name", lambda h: h.name),
            *_repeated(self.hosts, "switch port", lambda h: (h.switch, h.port)),
            *_repeated(self.hosts, "MAC address", lambda h: h.mac),
            *_repeated(self.hosts, "IP address", lambda h: h.ip),
        ]
        known = {switch.name for switch in self.switches}
        problems += [
            f"host {host.name} is on switch {host.switch!r}, which is not listed"
            f" (known: {', '.join(sorted(known))})"
            for host in self.hosts
            if host.switch not in known
        ]
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

    def switch(self, name: str) -> Switch:
        """The switch of that name. Raises KeyError for a name the topology does not have."""
        for switch in self.switches:
            if switch.name == name:
                return switch
        raise KeyError(f"the topology has no switch {name!r}")

    def hosts_of(self, switch: str) -> tuple[Host, ...]:
        """The hosts on a switch, by port."""
        return tuple(sorted((h for h in self.hosts if h.switch == switch), key=lambda h: h.port))


def load_topology(path: Path) -> Topology:
    """Read and check a topology file.

    Raises:
        TopologyError: unreadable, not YAML/JSON, or not a valid topology; all problems in one message.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise TopologyError(f"cannot read topology file {path}: {error.strerror}") from None
    try:
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise TopologyError(
            f"{path} is not {'JSON' if path.suffix == '.json' else 'YAML'}: {error}"
        ) from None
    if not isinstance(data, dict):
        raise TopologyError(f"{path}: a topology is a mapping with 'switches' and 'hosts'")
    try:
        return Topology.model_validate(data)
    except ValidationError as error:
        raise TopologyError(f"{path} is not a valid topology:\n{_render(error)}") from None


def single_switch(
    workers: int, grpc: str, shm: str | None = None, *, name: str = "s1", target: Target = "bmv2"
) -> Topology:
    """One switch with hosts h1 to h<workers> on ports 1 to <workers>, addresses 10.0.0.<i>."""
    if not 1 <= workers <= MAX_HOSTS:
        raise TopologyError(f"a single switch has 1 to {MAX_HOSTS} hosts, not {workers}")
    hosts = tuple(
        Host(name=f"h{i}", switch=name, port=i, mac=f"02:00:00:00:00:{i:02x}", ip=f"10.0.0.{i}", shm=shm)
        for i in range(1, workers + 1)
    )
    return Topology(switches=(Switch(name=name, grpc=grpc, target=target),), hosts=hosts)


def _repeated(items: Iterable[_Named], what: str, key: Callable[[_Named], Hashable]) -> list[str]:
    names: dict[Hashable, list[str]] = {}
    for item in items:
        names.setdefault(key(item), []).append(item.name)
    return [
        f"{what} {_text(value)} is used {len(users)} times (by {', '.join(users)})"
        for value, users in names.items()
        if len(users) > 1
    ]


def _text(value: Hashable) -> str:
    return " / ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _render(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in problem["loc"]).lstrip(".")
        message = problem["msg"].removeprefix("Value error, ")
        lines += [f"  {place + ': ' if place else ''}{part}" for part in message.split("; ")]
    return "\n".join(lines)
