# SPDX-License-Identifier: Apache-2.0
"""Per-hop behaviours of classes of packets, spraying and simulated loss. All may change while
jobs run.

.. code-block:: yaml

    qos:
      priorities: true                 # false: all classes but the reliable one share the lowest queue
      spray: round_robin               # or random, least_loaded, hash
      classes:                         # by DSCP or its name; what is not given stays as it is by default
        AF13: {trim_at: 12}            # the smallest magnitudes of the back layers
        0: {drop_at: 40, mark_at: never}
      losses:
        - {switch: leaf1, port: 5, direction: egress, dscp: AF11, probability: 0.01}
      queues:                          # BMv2 only: a soft switch takes rates and depths on its command line
        - {switch: leaf1, port: 5, rate_pps: 2000, depth: 64}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from weir.wire.definition import (
    BEST_EFFORT_DSCP,
    LAYER_CLASSES,
    MAGNITUDE_CLASSES,
    RELIABLE_DSCP,
    SprayMode,
    dscp,
)


def _code_point(given: object) -> object:
    """Return the DSCP that AFxy (RFC 2597) or CSx (RFC 2474) names; anything else as it is."""
    if isinstance(given, str):
        if forwarding := re.fullmatch(r"AF([1-4])([1-3])", given, re.IGNORECASE):
            return 8 * int(forwarding[1]) + 2 * int(forwarding[2])
        if selector := re.fullmatch(r"CS([0-7])", given, re.IGNORECASE):
            return 8 * int(selector[1])
    return given


_OLD_LAYERS: Final = range(8, 56, 8)  # CS1 to CS6, which topology files for wire version 2 name
NEVER: Final = 0xFFFF  # a threshold that no queue reaches
DROP_PORT: Final = 511  # v1model's bit<9> drop port; nothing can be attached to it

Threshold = Annotated[int, Field(ge=0, lt=NEVER)] | Literal["never"]
Dscp = Annotated[int, BeforeValidator(_code_point), Field(ge=0, lt=64)]
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
    """The per-hop behaviour of a class: its queue (7 is served first), and thresholds in packets."""

    queue: int
    trim_at: int = NEVER
    mark_at: int = NEVER
    drop_at: int = NEVER


MARK_AT: Final = 12
"""From this depth on, windows close."""

TRIM_AT: Final = (2 * MARK_AT // 3, 32, 48)  # by magnitude class
"""Where packets lose their lanes. The smallest magnitudes begin below MARK_AT: as long as their loss holds
the queue, no window closes. The others begin above it, so that senders slow down before any of them is
lost, and each where the one before has lost all, staggered as WRED's often are. The last leaves a quarter
of the usual 64 places to what may not be trimmed. The distances are chosen here."""

WEIR_CLASSES: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        dscp(layer, magnitude): (layer, magnitude)
        for layer, magnitude in product(range(LAYER_CLASSES), range(MAGNITUDE_CLASSES))
    }
)
"""Layer class and magnitude class that a DSCP stands for."""

DEFAULT_CLASSES: Final[Mapping[int, Enqueue]] = MappingProxyType(
    {
        RELIABLE_DSCP: Enqueue(queue=RELIABLE_DSCP >> 3, mark_at=MARK_AT),
        **{
            code: Enqueue(queue=code >> 3, trim_at=TRIM_AT[magnitude], mark_at=MARK_AT)
            for code, (_, magnitude) in WEIR_CLASSES.items()
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
    def _trims_what_can_be_trimmed(self) -> "Qos":
        for code, said in self.classes.items():
            if said.trim_at not in {None, "never"} and code not in WEIR_CLASSES:
                old = f" (CS{code >> 3} was a layer class of wire version 2)" if code in _OLD_LAYERS else ""
                raise ValueError(f"classes: DSCP {code} has trim_at, but only AF11 to AF43 are trimmed{old}")
        return self

    @model_validator(mode="after")
    def _keeps_order(self) -> "Qos":
        behaviours = self.per_hop_behaviours()
        for layer in range(LAYER_CLASSES):
            limits = [behaviours[dscp(layer, magnitude)].trim_at for magnitude in range(MAGNITUDE_CLASSES)]
            if limits != sorted(limits):
                x = dscp(layer) >> 3
                raise ValueError(
                    f"classes: trim_at must not fall from AF{x}3 to AF{x}1, the largest magnitudes; "
                    f"it would be {', '.join(map(_word, limits))}"
                )
        return self

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
        """Mode as the switch program numbers it."""
        return SprayMode[self.spray.upper()]

    def per_hop_behaviours(self) -> dict[int, Enqueue]:
        """Return the per-hop behaviour of every class that has one of its own, by DSCP; the file's settings
        override the defaults.
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
    if code in WEIR_CLASSES:
        layer, magnitude = WEIR_CLASSES[code]
        return f"AF{code >> 3}{code >> 1 & 3} layer {layer}, magnitude {magnitude}"
    return ""


def _word(threshold: int) -> str:
    return "never" if threshold == NEVER else str(threshold)


def _packets(said: int | Literal["never"] | None, default: int) -> int:
    if said is None:
        return default
    return NEVER if said == "never" else said
