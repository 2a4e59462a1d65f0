# SPDX-License-Identifier: Apache-2.0
"""Bytes of published weights: of a trainer that sends to this many engines, and of its peers.

The real publisher and subscribers run in virtual time behind one switch that copies packets; links lose what
they are told to. Bytes are those of frames, all headers included, from a moment on when all engines have the
first version. Values move by one unit in the last place, at random places, or get random bits ("any").
The least is the entropy of places, signs or bits. The peers send the dense weights over TCP: Gloo's broadcast
as a tree, a chain, and a store to which the trainer uploads once and from which all engines download.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.host_agent.weights.pace import Rates
from weir.host_agent.weights.publisher import Publisher
from weir.host_agent.weights.subscriber import Digest, Message, Subscriber
from weir.host_agent.weights.versions import Replica, Source
from weir.report.words import byte_count
from weir.train.wirebytes import TCP_PAYLOAD

_DELAY_NS: Final = 100_000
_TRAINER: Final = ("trainer", 1)
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_UPDATE: Final = "bytes a value"
_MOST_NS: Final = 600_000_000_000


@dataclass(frozen=True)
class Parameters:
    """The weights, what changes in a version, and who follows."""

    elements: int = parameter(2_000_000, "values", least=1024)
    dtype: str = parameter("bfloat16", "of torch", choices=("bfloat16", "float16", "float32", "int8"))
    changed: tuple[float, ...] = parameter((0.01, 0.03, 0.25, 1.0), "shares of the values", above=0, most=1)
    moves: tuple[str, ...] = parameter(("unit", "any"), "how values change", choices=("unit", "any"))
    engines: tuple[int, ...] = parameter((1, 2, 4, 8, 16, 64), "that follow", least=1)
    loss: tuple[float, ...] = parameter(
        (0.0, 0.01), "share of packets that each link loses", least=0, most=0.5
    )


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Count."""
    yield Table(
        f"An update of {parameters.elements:,} values, {parameters.dtype}",
        (Column(_UPDATE), Column("of dense, %")),
        tuple(_sizes(parameters)),
    )
    yield Table(
        f"Bytes for one update of {parameters.changed[0]:.1%} of the values",
        (Column("trainer sends", byte_count), Column("an engine receives", byte_count)),
        tuple(_fan_out(parameters)),
    )


def changed(weights: torch.Tensor, share: float, move: str, seed: int) -> None:
    """Change a share of the weights in place."""
    generator = torch.Generator().manual_seed(seed)
    integers = weights.view(_WORDS[weights.element_size()])
    chosen = torch.rand(weights.numel(), generator=generator) < share
    count = int(chosen.sum())
    if move == "unit":
        step = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
        integers[chosen] += step.to(integers.dtype)
    else:
        limits = torch.iinfo(integers.dtype)
        integers[chosen] = torch.randint(limits.min, limits.max + 1, (count,), generator=generator).to(
            integers.dtype
        )


def least_bytes(share: float, bits: int) -> float:
    """Return the entropy of a value's change, in bytes: whether it changed, and this many bits where it "
    "did."""
    rest = 1 - share
    places = -share * math.log2(share) - (rest * math.log2(rest) if rest else 0)
    return (places + share * bits) / 8


def weights_of(parameters: Parameters) -> torch.Tensor:
    """Return a first version."""
    values = torch.randn(parameters.elements, generator=torch.Generator().manual_seed(1))
    dtype = getattr(torch, parameters.dtype)
    return (values * 40).to(dtype) if parameters.dtype == "int8" else values.to(dtype)


def _sizes(parameters: Parameters) -> Iterator[Row]:
    for move, share in itertools.product(parameters.moves, parameters.changed):
        weights = weights_of(parameters)
        size = weights.element_size()
        source = Source({"weights": weights})
        changed(weights, share, move, 2)
        found, _ = Publishing(source).update_bytes()
        least = least_bytes(share, 1 if move == "unit" else 8 * size)
        each = found / parameters.elements
        yield Row(
            "Weir",
            {_UPDATE: each, "of dense, %": 100 * each / size},
            {"changed": f"{share:.1%}", "by": move},
            counts={f"pieces, {form.name.lower()}": count for form, count in source.forms.items()},
            floor=least,
        )


def _fan_out(parameters: Parameters) -> Iterator[Row]:
    dense = parameters.elements * getattr(torch, parameters.dtype).itemsize / TCP_PAYLOAD
    for engines in parameters.engines:
        for loss in parameters.loss:
            weights = weights_of(parameters)
            world = Publishing(Source({"weights": weights}), engines, loss, weights)
            changed(weights, parameters.changed[0], parameters.moves[0], 2)
            sent, received = world.update_bytes()
            counts = {"repairs": world.repairs} if loss else {}
            setting: dict[str, int | str] = {"engines": engines, "loss": f"{loss:.1%}"}
            yield Row("Weir", {"trainer sends": sent, "an engine receives": received}, setting, counts=counts)
        rounds = math.ceil(math.log2(engines + 1))
        for peer, sends in (("Gloo broadcast", rounds), ("chain", 1), ("upload, downloads", 1)):
            yield Row(
                f"{peer}, dense",
                {"trainer sends": sends * dense, "an engine receives": dense},
                {"engines": engines},
            )


@dataclass
class Engine:
    """A subscriber and its copy of the weights."""

    machine: Subscriber
    replica: Replica
    bytes: int = 0
    wake: int = -1


@dataclass
class Publishing:
    """A trainer and engines in virtual time."""

    source: Source
    engines: int = 0
    loss: float = 0.0
    weights: torch.Tensor | None = None
    sent: int = 0
    now: int = 0
    wake: int = -1
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random, self._numbers = random.Random(1), itertools.count()
        layout = self.source.layout
        self.publisher: Publisher[int] = Publisher(
            1, b"k" * 16, layout.fingerprint, self.source.snapshot, rates=Rates(first=12.5e6, most=12.5e6)
        )
        self._engines = []
        for number in range(self.engines):
            assert self.weights is not None
            machine = Subscriber(1, b"k" * 16, layout.fingerprint, _TRAINER, layout.most_bytes, number)
            replica = Replica({"weights": self.weights})
            code, digest = self.source.snapshot()
            replica.follow(memoryview(code), snapshot=True)
            replica.confirm(digest)
            machine.version = 1
            self._engines.append(Engine(machine, replica))

    @property
    def repairs(self) -> int:
        """Packets that were sent again."""
        return sum(count for what, count in self.publisher.counts.items() if what.startswith("repairs"))

    def update_bytes(self) -> tuple[int, float]:
        """Publish the weights; return the bytes of the trainer, and of an engine, until all have them."""
        self.publisher.publish(self.source.update(), self.now, self.source.seal())
        self._pump()
        while self.events and self.now < _MOST_NS:
            self.now, _, what = heapq.heappop(self.events)
            what()
            if not self.publisher.backlog and all(e.machine.version == 2 for e in self._engines):
                break
        assert all(engine.replica.digest == self.source.digest for engine in self._engines)
        return self.sent, sum(e.bytes for e in self._engines) / max(1, self.engines)

    def _at(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self._numbers), what))

    def _lost(self) -> bool:
        return self._random.random() < self.loss

    def _pump(self) -> None:
        datagrams, wake = self.publisher.poll(self.now)
        for each in datagrams:
            self.sent += each.payloads.size + each.count * FRAME_OVERHEAD
            for payload in each.split():
                if not self._lost():
                    self._copy(payload, each.to)
        if wake != self.wake:
            self.wake = wake
            self._at(wake, lambda: self._pump() if self.wake == wake else None)

    def _copy(self, payload: bytes, to: object) -> None:
        for number in range(self.engines):
            if to in (None, number) and not self._lost():
                self._at(self.now + _DELAY_NS, lambda n=number: self._arrive(n, payload))  # type: ignore[misc]

    def _arrive(self, number: int, payload: bytes) -> None:
        engine = self._engines[number]
        engine.bytes += len(payload) + FRAME_OVERHEAD
        engine.machine.on_packet(payload, self.now, _TRAINER)
        for message in engine.machine.messages():
            if isinstance(message, Message):
                engine.replica.follow(message.code, snapshot=message.name.snapshot)
            elif isinstance(message, Digest):
                engine.replica.confirm(message.digest)
        self._poll(number)

    def _poll(self, number: int) -> None:
        engine = self._engines[number]
        payloads, wake = engine.machine.poll(self.now)
        for payload in payloads:
            if not self._lost():
                self._at(self.now + _DELAY_NS, lambda p=payload: self._ask(number, p))  # type: ignore[misc]
        if wake != engine.wake:
            engine.wake = wake
            self._at(wake, lambda: self._poll(number) if engine.wake == wake else None)

    def _ask(self, number: int, payload: bytes) -> None:
        self.publisher.on_packet(payload, self.now, number)
        self._pump()
