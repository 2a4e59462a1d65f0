# SPDX-License-Identifier: Apache-2.0
"""Is it worth a box? A training step by link rate, model and workers: peers, Weir, the hub's processor.

An ideal model, in which only bytes, the rate of lines and processor time count: what is larger than a
simulation can run. A step is a trace: layers compute backward one after the other, and each layer's gradient
is exchanged when it is there and the one before it is done.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, log2
from typing import Final

from weir.bench.case import Run, parameter
from weir.bench.ranks import least_seconds
from weir.bench.results import Column, Line, Panel, Plot, Row, Table
from weir.host_agent.collectives.packing import LaneBits, lane_format

_BLOCK: Final = 256
_FORWARD: Final = 1 / 3  # of a step's operations
_OPERATIONS: Final = 6  # for each parameter and token


@dataclass(frozen=True)
class Model:
    """A transformer's shape: equal layers, and the parameters outside of them, which come last."""

    layers: int
    layer: float
    rest: float

    @property
    def parameters(self) -> float:
        """Number of parameters."""
        return self.layers * self.layer + self.rest


MODELS: Final = {
    "gpt2": Model(12, 7.09e6, 39.4e6),
    "llama-1b": Model(16, 60.8e6, 263e6),
    "llama-7b": Model(32, 202e6, 262e6),
}


@dataclass(frozen=True)
class Way:
    """A way to exchange gradients.

    bits: of a value on the wire. ring: over TCP, else by a switch. counts: of signs, to base workers + 1,
    as ``compress`` sends them. lanes: bits of a packed value.
    """

    name: str
    bits: float
    ring: bool = True
    counts: bool = False
    lanes: LaneBits | None = None

    def bytes(self, values: float, workers: int) -> float:
        """Return the payload that one worker sends for this many values; it receives as much."""
        if self.ring:
            return 2 * (workers - 1) / workers * self.bits / 8 * values
        if self.counts:
            return 4 * values / floor(32 / log2(workers + 1))
        if self.lanes:
            return 4 * values * lane_format(self.lanes, 0.0, workers).lanes(_BLOCK) / _BLOCK
        return self.bits / 8 * values

    def seconds(self, values: float, workers: int, rate: int) -> float:
        """Return what the line takes for them, headers included. rate: bit/s."""
        if self.ring:
            return least_seconds(values * self.bits / 32, workers, rate, ring=True)
        return least_seconds(self.bytes(values, workers) / 4, workers, rate, ring=False)


RING: Final = Way("ring", 32)
WAYS: Final = (
    RING,
    Way("ring, fp16 hook", 16),
    Way("ring, PowerSGD hook", 32 * 0.079),
    Way("Weir, 32 bits", 32, ring=False, lanes=32),
    Way("Weir, 16 bits", 16, ring=False, lanes=16),
    Way("Weir, compress", 0, ring=False, counts=True),
    Way("Weir, dfs, SGD only", 32 * 0.025, ring=False),
)
"""Those with the bytes that they were measured to send: PowerSGD of rank 4, `dfs` at 5 % of the values."""


@dataclass(frozen=True)
class Parameters:
    """Settings, all combinations, and what processors can do."""

    models: tuple[str, ...] = parameter(("gpt2", "llama-7b"), "shapes of the model", choices=MODELS)
    gigabits: tuple[float, ...] = parameter(
        (0.1, 1.0, 10.0, 100.0), "rates of a worker's link", unit="Gbit/s", above=0
    )
    workers: tuple[int, ...] = parameter((4, 16, 64), "numbers of workers", least=2, most=1024)
    tokens: int = parameter(4096, "of a worker in a step", least=1)
    teraflops: float = parameter(50.0, "that a worker computes", unit="TFLOP/s", above=0)
    worker: float = parameter(0.6, "processor seconds of a worker for each GB that it sends", least=0)
    switch: float = parameter(0.5, "processor seconds of the hub for each GB that a worker sends", least=0)
    cores: int = parameter(1, "of the hub that share its work", least=1)


def gradients(model: Model, tokens: int, teraflops: float) -> Iterator[tuple[float, float]]:
    """Yield the trace of a step: when each layer's gradient is there, back to front, and its values.

    Times are in seconds from the step's beginning, which is that of its forward pass.
    """
    operations = _OPERATIONS * tokens / (teraflops * 1e12)
    now = _FORWARD * operations * model.parameters
    for values in (*[model.layer] * model.layers, model.rest):
        now += (1 - _FORWARD) * operations * values
        yield now, values


def step(model: Model, way: Way, workers: int, rate: int, given: Parameters) -> tuple[float, float]:
    """Return the seconds of a step, and of the hub's processor. rate: bit/s."""
    now = exchanged = 0.0
    for now, values in gradients(model, given.tokens, given.teraflops):
        gigabytes = way.bytes(values, workers) / 1e9
        hub = 0.0 if way.ring else given.switch * workers * gigabytes / given.cores
        worker = 0.0 if way.ring else given.worker * gigabytes
        exchanged = max(exchanged, now) + max(way.seconds(values, workers, rate), hub, worker)
    total = 0.0 if way.ring else given.switch * workers * way.bytes(model.parameters, workers) / 1e9
    return max(now, exchanged), total


def run(parameters: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Compute all steps."""
    rows, panels = [], []
    for name in parameters.models:
        for workers in parameters.workers:
            lines: dict[str, list[float]] = {way.name: [] for way in WAYS}
            for gigabits in parameters.gigabits:
                rate = round(gigabits * 1e9)
                for way in WAYS:
                    seconds, hub = step(MODELS[name], way, workers, rate, parameters)
                    lines[way.name].append(seconds)
                    carried = way.bytes(MODELS[name].parameters, workers)
                    rows.append(
                        Row(
                            way.name,
                            {
                                "seconds": seconds,
                                "MB up": carried / 1e6,
                                "hub": hub or None,
                                "one card": None
                                if way.ring
                                else workers * way.seconds(MODELS[name].parameters, workers, rate),
                            },
                            {
                                "model": name,
                                "workers": f"{workers} workers",
                                "rate": f"{gigabits:g} Gbit/s",
                            },
                        )
                    )
            panels.append(
                Panel(
                    f"{name}, {workers} workers",
                    "Gbit/s of a link",
                    "seconds of a step",
                    [Line(way, parameters.gigabits, times) for way, times in lines.items()],
                    "xy",
                )
            )
    yield Table(
        "A training step, by an ideal model",
        (
            Column("seconds", note="of a step, exchange and backward pass overlapped"),
            Column("MB up", note="of one worker, without headers; as much comes down"),
            Column("hub", note="processor seconds of the hub for a step"),
            Column("one card", note="seconds that the hub's link takes, if it has one of the same rate"),
        ),
        tuple(rows),
        peers=(RING.name, "ring, fp16 hook", "ring, PowerSGD hook"),
        notes=(
            f"{parameters.tokens:,} tokens of a worker in a step at {parameters.teraflops:g} TFLOP/s; the "
            f"hub's processor takes {parameters.switch:g} s for each GB of a worker's packets, a worker's "
            f"own {parameters.worker:g} s; peers' processors take nothing; lossy ways are assumed to "
            "train as well",
        ),
    )
    yield Plot("A training step, by an ideal model", panels[:: len(parameters.workers)])
