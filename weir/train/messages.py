# SPDX-License-Identifier: Apache-2.0
"""The settings that the launcher hands a worker on its command line, and the worker's messages to it.

A worker's messages are lines of JSON on a pipe, one object each. Each is a frozen dataclass whose fields are
JSON values; ``encode`` and ``decode`` add and read the kind. Times are seconds, traffic counts include all
headers from Ethernet up.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter

from weir.host_agent.transport.counters import TransportCounters
from weir.methods import find_method
from weir.train.config import TrainConfig

BackendName = Literal["weir", "gloo"]


def backend_of(config: TrainConfig) -> BackendName:
    """Return the backend that a run's method needs."""
    return "gloo" if find_method(config.method).kind == "peer" else "weir"


class WorkerSpec(BaseModel):
    """One run, as its workers need to know it.

    ``init_method``: torch.distributed's, where ranks find each other. ``replicas``: who compares the
    parameters of all ranks after each step: the launcher, which hears every rank, or the group itself,
    when each rank has a launcher of its own. ``save``: where checkpoints go. ``resume``: where that of an
    earlier run is.
    """

    model_config = ConfigDict(frozen=True)

    config: TrainConfig
    backend: BackendName
    init_method: str
    replicas: Literal["launcher", "group"] = "launcher"
    save: Path | None = None
    resume: Path | None = None


@dataclass(frozen=True)
class WireCounters:
    """Counts of what one worker put on and took off the wire, all headers from Ethernet up included.

    They are those that every transport has, the kernel's TCP, too; of Weir's own the names are
    TransportCounters'.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    packets_up: int = 0
    packets_down: int = 0
    retransmissions: int = 0

    @classmethod
    def of(cls, counters: TransportCounters) -> "WireCounters":
        """Return those counters that every transport has."""
        return cls(**{f.name: getattr(counters, f.name) for f in fields(cls)})

    def __add__(self, other: Self) -> "WireCounters":
        return WireCounters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: Self) -> "WireCounters":
        return WireCounters(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class Sent:
    """Part of a gradient that one worker gave to the transport in one step.

    density: share of the values, 1.0 when dense. blocks, blocks_skipped: of the packets' blocks, in what the
    encoding selected of the gradient; 0 where there are none.
    chosen: values that this worker chose; values: those that it sent, its own choice or, with methods that
    agree on one, everybody's; union: those that some worker sent, the same on all. None where no values are
    chosen. selection_s: time it took to choose.
    """

    density: float = 1.0
    blocks: int = 0
    blocks_skipped: int = 0
    chosen: int | None = None
    values: int | None = None
    union: int | None = None
    selection_s: float = 0.0


@dataclass(frozen=True)
class Delivery:
    """Fate of one worker's packets and gradient in one step.

    Attributes:
        counters: of its transport.
        lanes: values of its gradient that entered the sums.
        missing: of them, those no result included.
        budget: how many might have been missing.
        reduces: reductions that it took part in, one after another.
        migrated: units that moved between servers, and migrated_bytes: of them; worker 0 tells.
    """

    counters: TransportCounters = field(default_factory=TransportCounters)
    lanes: int = 0
    missing: int = 0
    budget: int = 0
    reduces: int = 0
    migrated: int = 0
    migrated_bytes: int = 0

    def __add__(self, other: Self) -> "Delivery":
        return Delivery(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: Self) -> "Delivery":
        return Delivery(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    @property
    def missing_share(self) -> float:
        """Share of the lanes that is missing; 0 when none entered."""
        return self.missing / self.lanes if self.lanes else 0.0


@dataclass(frozen=True)
class Ready:
    """The worker has joined its group and built its model."""

    rank: int
    parameters: int
    steps_per_epoch: int
    samples: int
    traffic_source: str


@dataclass(frozen=True)
class Step:
    """One training step is done. ``step`` counts from 1 through the whole run, ``epoch`` from 1.

    communication_s: time in which at least one bucket was under way. processor_s: processor time of all of
    the worker's threads. memory: the most bytes that were resident until then, beyond those of the process
    before it joined its group. checksum: of all parameters after the step, equal on every rank; None where
    the method lets them differ.
    """

    rank: int
    epoch: int
    step: int
    loss: float
    samples: int
    seconds: float
    communication_s: float
    traffic: WireCounters
    sent: Sent
    checksum: int | None
    delivery: Delivery = field(default_factory=Delivery)
    processor_s: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class Evaluated:
    """The held-out set, over all ranks: mean loss and share of right answers. step: steps taken until then.

    Each rank answers its part of the questions. checksum: of the parameters when training is over, equal on
    every rank; None before. traffic: of what was exchanged after the last step to make them equal, by methods
    that let them differ until then.
    """

    rank: int
    epoch: int
    loss: float
    accuracy: float
    step: int = 0
    checksum: int | None = None
    traffic: WireCounters = field(default_factory=WireCounters)


@dataclass(frozen=True)
class Finished:
    """The worker is done and has left its group."""

    rank: int


@dataclass(frozen=True)
class Failed:
    """The worker raised: what the exception says, and its traceback; "" where what it says is enough."""

    rank: int
    error: str
    traceback: str


Message = Ready | Step | Evaluated | Finished | Failed


@dataclass(frozen=True)
class _Envelope:
    kind: str


_ENVELOPE: Final = TypeAdapter(_Envelope)
_KINDS: Final[dict[str, TypeAdapter[Message]]] = {
    kind.__name__.lower(): TypeAdapter(kind) for kind in (Ready, Step, Evaluated, Finished, Failed)
}


def encode(message: Message) -> str:
    """Return one line of JSON, without the newline. NaN and infinity, as losses may be, are written so."""
    return json.dumps({"kind": type(message).__name__.lower(), **asdict(message)})


def decode(line: str) -> Message:
    """Return the message of one line. Raises ValueError when it is none."""
    kind = _KINDS.get(_ENVELOPE.validate_json(line).kind)
    if kind is None:
        raise ValueError(f"not a worker's message: {line[:200]!r}")
    return kind.validate_json(line, strict=True)
