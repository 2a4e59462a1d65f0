# SPDX-License-Identifier: Apache-2.0
"""A publisher and its subscribers on a network that loses, delays, repeats and reorders, in virtual time."""

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from weir.host_agent.transport.datagram_batches import batch_of
from weir.host_agent.weights.pace import Rates
from weir.host_agent.weights.packets import Name
from weir.host_agent.weights.publisher import Publisher
from weir.host_agent.weights.subscriber import Digest, Message, Subscriber

MS = 1_000_000
S = 1_000 * MS
JOB, KEY, LAYOUT = 7, b"k" * 16, b"eightbyt"
TRAINER = ("trainer", 1)
MOST = 1 << 20


@dataclass(frozen=True)
class Faults:
    """Shares of packets that each path loses and repeats; delay, and random delay, in nanoseconds."""

    loss: float = 0.0
    repeat: float = 0.0
    delay: int = 1 * MS
    jitter: int = 0


class Engine:
    """A subscriber whose weights are bytes: the digest of a version is at the end of its code."""

    def __init__(self, world: "World", name: str, machine: Subscriber) -> None:
        self.world, self.name, self.machine = world, name, machine
        self.versions: list[int] = []
        self.code = b""
        self.wake: int | None = None
        self.gone = False

    def take(self, message: object) -> None:
        if isinstance(message, Message):
            self.code = bytes(message.code)
            assert self.code == self.world.codes[message.name], f"{self.name}: not the published one"
            if not message.name.snapshot:
                assert message.name.number == self.versions[-1] + 1
        elif isinstance(message, Digest):
            assert message.digest == digest_of(self.code)
            self.versions.append(message.name.number)


def digest_of(code: bytes) -> bytes:
    return hashlib.sha256(code).digest()


class World:
    """All of it. ``down``: nothing passes, as while the switch is away."""

    def __init__(self, seed: int, faults: Faults, *, size: int = 20_000, **settings: object) -> None:
        self.random, self.faults, self.size = random.Random(seed), faults, size
        self.now, self.down = 0, False
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.engines: dict[str, Engine] = {}
        self.codes: dict[Name, bytes] = {}
        self.sent: Counter[object] = Counter()  # bytes, by who sent them
        self.received: Counter[str] = Counter()
        self._pub_wake: int | None = None
        self.publisher: Publisher[str] = Publisher(
            JOB,
            KEY,
            LAYOUT,
            self._snapshot,
            **{"rates": Rates(first=5e6), **settings},  # type: ignore[arg-type]
        )
        self.pump()

    def _snapshot(self) -> tuple[bytes, bytes]:
        code = self.random.randbytes(self.size)
        self.codes[Name(self.publisher.newest, snapshot=True)] = code
        return code, digest_of(code)

    def publish(self, length: int, seal_after: int = 0) -> int:
        """Publish an update; its digest is known so much later."""
        code = self.random.randbytes(length)
        number = self.publisher.publish(code, self.now)
        self.codes[Name(number, snapshot=False)] = code
        self.pump()
        if seal_after:
            self.at(self.now + seal_after, lambda: self._seal(code))
        else:
            self._seal(code)
        return number

    def _seal(self, code: bytes) -> None:
        self.publisher.seal(digest_of(code))
        self.pump()

    def join(self, name: str) -> Engine:
        machine = Subscriber(JOB, KEY, LAYOUT, TRAINER, MOST, seed=len(self.engines))
        self.engines[name] = engine = Engine(self, name, machine)
        self.pump_engine(engine)
        return engine

    def leave(self, name: str) -> None:
        self.engines.pop(name).gone = True

    def at(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def carry(self, what: Callable[[], None]) -> None:
        """Let something arrive, or not."""
        for _ in range(1 + (self.random.random() < self.faults.repeat)):
            if self.down or self.random.random() < self.faults.loss:
                continue
            self.at(self.now + self.faults.delay + self.random.randrange(self.faults.jitter + 1), what)

    def pump(self) -> None:
        datagrams, wake = self.publisher.poll(self.now)
        for each in datagrams:
            self.sent[TRAINER] += each.payloads.size
            to = list(self.engines) if each.to is None else [str(each.to)]
            for name, payload in itertools.product(to, each.split()):
                if (engine := self.engines.get(name)) is not None:
                    self.carry(lambda e=engine, p=payload: self.arrive(e, p))  # type: ignore[misc]
        if self._pub_wake is None or wake < self._pub_wake or self._pub_wake <= self.now:
            self._pub_wake = wake
            self.at(wake, self._on_publisher_timer)

    def _on_publisher_timer(self) -> None:
        if self._pub_wake is not None and self._pub_wake <= self.now:
            self._pub_wake = None
            self.pump()

    def arrive(self, engine: Engine, payload: bytes) -> None:
        if engine.gone:
            return
        self.received[engine.name] += len(payload)
        engine.machine.on_batch(batch_of([payload], TRAINER), self.now)
        for message in engine.machine.messages():
            engine.take(message)
        self.pump_engine(engine)

    def pump_engine(self, engine: Engine) -> None:
        if engine.gone:
            return
        payloads, wake = engine.machine.poll(self.now)
        for payload in payloads:
            self.sent[engine.name] += len(payload)
            self.carry(lambda p=payload: self._ask(engine, p))  # type: ignore[misc]
        if engine.wake is None or wake < engine.wake or engine.wake <= self.now:
            engine.wake = wake
            self.at(wake, lambda: self._on_timer(engine))

    def _on_timer(self, engine: Engine) -> None:
        if engine.wake is not None and engine.wake <= self.now:
            engine.wake = None
            self.pump_engine(engine)

    def _ask(self, engine: Engine, payload: bytes) -> None:
        self.publisher.on_packet(payload, self.now, engine.name)
        self.pump()

    def run(self, until: Callable[[], bool] | None = None, most: int = 60 * S) -> bool:
        """Go on until something holds, or for so long. Return whether it does."""
        end = self.now + most
        while self._events and self._events[0][0] <= end:
            if until is not None and until():
                return True
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = max(self.now, end) if until is None else self.now
        return until is not None and until()

    def all_have(self, version: int) -> bool:
        return all(engine.versions[-1:] == [version] for engine in self.engines.values())
