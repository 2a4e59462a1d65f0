# SPDX-License-Identifier: Apache-2.0
"""The treatment of classes of packets: queues, thresholds, spraying, simulated loss. All may change while
jobs run.

.. code-block:: yaml

    qos:
      priorities: true                 # false: all classes but the reliable one share the lowest queue
      spray: round_robin               # or random, least_loaded, hash
      classes:                         # by DSCP; what is not given stays as it is by default
        48: {trim_at: 16, mark_at: 12}
        0: {drop_at: 40, mark_at: never}
      losses:
        - {switch: leaf1, port: 5, direction: egress, dscp: 8, probability: 0.01}
      queues:                          # BMv2 only: a soft switch takes rates and depths on its command line
        - {switch: leaf1, port: 5, rate_pps: 2000, depth: 64}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from weir.wire.definition import BEST_EFFORT_DSCP, LAYER_CLASSES, RELIABLE_DSCP, SprayMode, dscp

NEVER: Final = 0xFFFF  # a threshold that no queue reaches
DROP_PORT: Final = 511  # v1model's bit<9> drop port; nothing can be attached to it

Threshold = Annotated[int, Field(ge=0, lt=NEVER)] | Literal["never"]
Dscp = Annotated[int, Field(ge=0, lt=64)]
Port = Annotated[int, Field(ge=1, lt=DROP_PORT)]
SprayName = Literal["hash", "round_robin", "random", "least_loaded"]
Direction = Literal["ingress", "egress"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassSpec(_Model):
    """The settings of one DSCP in a topology file; None: the default. Thresholds are packets in the class's
    queue.

    ``trim_at``: from this depth on, packets that may be trimmed are; ``mark_at``: ECN-capable ones are
    marked; ``drop_at``: packets that can be neither are dropped.
    """

    queue: Annotated[int, Field(ge=0, le=7)] | None = None
    trim_at: Threshold | None = None
    mark_at: Threshold | None = None
    drop_at: Threshold | None = None


class Loss(_Model):
    """Simulated loss of the packets that enter or leave ``switch`` by ``port``; of one DSCP if it is
    given.
    """

    switch: str
    port: Port
    direction: Direction = "egress"
    dscp: Dscp | None = None
    probability: float = Field(ge=0, le=1)


class QueueSpec(_Model):
    """Rate (packets/s) and depth (packets) of every queue of a BMv2 port, set over Thrift."""

    switch: str
    port: Port
    rate_pps: int | None = Field(default=None, ge=1)
    depth: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Enqueue:
    """The treatment of a class of packets: its queue (7 is served first), and thresholds in packets."""

    queue: int
    trim_at: int = NEVER
    mark_at: int = NEVER
    drop_at: int = NEVER


DEFAULT_CLASSES: Final[Mapping[int, Enqueue]] = MappingProxyType(
    {
        RELIABLE_DSCP: Enqueue(queue=RELIABLE_DSCP >> 3, mark_at=12),
        **{
            dscp(layer): Enqueue(queue=dscp(layer) >> 3, trim_at=16, mark_at=12)
            for layer in range(LAYER_CLASSES)
        },
        BEST_EFFORT_DSCP: Enqueue(queue=0, mark_at=20),
    }
)


class Qos(_Model):
    """The ``qos`` section of a topology file."""

    priorities: bool = True
    classes: dict[Dscp, ClassSpec] = Field(default_factory=dict)
    spray: SprayName = "round_robin"
    losses: tuple[Loss, ...] = ()
    queues: tuple[QueueSpec, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> "Qos":
        places = [(loss.switch, loss.port, loss.direction, loss.dscp) for loss in self.losses]
        for place in sorted(set(places), key=str):
            if places.count(place) > 1:
                switch, port, direction, code = place
                of = f" of DSCP {code}" if code is not None else ""
                raise ValueError(f"losses: {direction}{of} at port {port} of {switch} is given twice")
        ports = [(queue.switch, queue.port) for queue in self.queues]
        for switch, port in sorted(set(ports)):
            if ports.count((switch, port)) > 1:
                raise ValueError(f"queues: port {port} of {switch} is given twice")
        return self

    @property
    def spray_mode(self) -> SprayMode:
        """Return the mode as the switch program numbers it."""
        return SprayMode[self.spray.upper()]

    def treatments(self) -> dict[int, Enqueue]:
        """Return every class that has a treatment of its own, by DSCP; the file's settings override the
        defaults.
        """
        resolved = {}
        for code in sorted(DEFAULT_CLASSES.keys() | self.classes.keys()):
            default = DEFAULT_CLASSES.get(code, Enqueue(queue=code >> 3))
            said = self.classes.get(code, ClassSpec())
            queue = default.queue if self.priorities or code == RELIABLE_DSCP else 0
            resolved[code] = Enqueue(
                queue=queue if said.queue is None else said.queue,
                trim_at=_packets(said.trim_at, default.trim_at),
                mark_at=_packets(said.mark_at, default.mark_at),
                drop_at=_packets(said.drop_at, default.drop_at),
            )
        return resolved


def class_name(code: int) -> str:
    """Return the name of the class that a DSCP stands for; empty if it has none."""
    if code == RELIABLE_DSCP:
        return "reliable"
    if code == BEST_EFFORT_DSCP:
        return "best effort"
    for layer in range(LAYER_CLASSES):
        if code == dscp(layer):
            return f"layer class {layer}"
    return ""


def _packets(said: int | Literal["never"] | None, default: int) -> int:
    if said is None:
        return default
    return NEVER if said == "never" else said
