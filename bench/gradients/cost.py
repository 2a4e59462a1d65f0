# SPDX-License-Identifier: Apache-2.0
"""Bytes on the wire, in both directions, headers included, of each way to send the same recorded gradients.

No packet is sent and nothing is timed: bytes follow exactly from what each worker has to send, and are tested
equal to those of the real transport (``weir.host_agent.compression.encodings.cost``).

The first group has the same elements to send, each worker's top-k; they differ in how these are written down:

- ``omnireduce:b/m``: blocks of b elements in messages of m, as OmniReduce's open code sends them
  (host_agent.compression.encodings.omnireduce);
- ``lists``: every worker's (index, value) pairs, gathered by all others, 32 bits each;
- ``bitmaps``: a bit for each element, and the values, gathered likewise;
- ``packed:...``: these three with as few bits a value as DFS has with this many workers, in whole bytes only
  where a block ends. Their scales and what rounding takes are not counted, so they cost more in truth;
- ``weir:m``: through Weir's switch with one mask size m (``weir:dense``: with none) for all parameters and
  steps, and the packet block and tree levels that cost least in hindsight;
- ``planner``: through Weir's switch as planned, without hindsight.

The second has methods with a choice of their own at the same density, through Weir's switch in the encoding
they come with, and ``block-topk``: OmniReduce with the block top-k of its authors, as its open code sends it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Final, cast

import numpy as np
import torch

from weir.bench.case import Run, parameter
from weir.bench.gradients.replay import SLOTS, Energy, Replay, ReplayedStep, recorded, recordings
from weir.bench.grid import simulate
from weir.bench.results import Column, Line, Panel, Plot, Row, Table, share
from weir.host_agent.compression.encodings import omnireduce
from weir.host_agent.compression.encodings.cost import Flags, Occupancy, WireCost, by_block, exchange_cost
from weir.host_agent.compression.encodings.encoding import MASK_SIZES
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.report.words import byte_count
from weir.train.config import SGD_MODELS, Model, make_config
from weir.train.task import make_task
from weir.wire.definition import BLOCK_SIZES

GOAL: Final = 0.8717
"""DFS's headline: communication cost less than OmniReduce's by that share, "up to"."""

OWN: Final = ("dfs", "exdyna")
BASELINE: Final = "omnireduce:256/256"
"""Its example configuration."""

PACKED: Final = "packed:"
"""Rivals with DFS's bits a value."""

_MESSAGES: Final = (64, 256, 1024)
_LEVELS: Final = (1, 2, 3)
_VALUE, _INDEX = 4, 4  # bytes
_DATAGRAM: Final = 1472  # bytes of UDP payload in an Ethernet frame


@dataclass(frozen=True)
class Setting:
    """Whose gradients, how dense, among how many."""

    model: Model
    density: float
    workers: int


@dataclass(frozen=True)
class Bytes:
    """Of all workers: up, down, and in both directions without headers (values and 32-bit indexes only)."""

    up: int = 0
    down: int = 0
    bare: int = 0

    @property
    def total(self) -> int:
        """Bytes in both directions, headers included."""
        return self.up + self.down

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.up + other.up, self.down + other.down, self.bare + other.bare)


@dataclass(frozen=True)
class Measured:
    """Sums over the ``steps`` that count, by contender.

    density: of what travelled from each worker: its own choice, or the union if the method fills it. energy:
    share of the sum of all workers' gradients and residuals that was delivered, by squares.
    """

    setting: Setting
    steps: int
    bytes: dict[str, Bytes]
    density: dict[str, float]
    energy: dict[str, float]

    def __post_init__(self) -> None:
        if not isinstance(self.setting, Setting):  # as a journal has it
            object.__setattr__(self, "setting", Setting(**self.setting))
            parts = {name: Bytes(**one) for name, one in self.bytes.items()}
            object.__setattr__(self, "bytes", parts)

    def saving(self, name: str, against: str = BASELINE) -> float:
        """Return the share of the other's bytes that it saves."""
        return 1 - self.bytes[name].total / self.bytes[against].total

    def best(self, prefix: str) -> str:
        """Return the cheapest contender whose name begins so."""
        return min((n for n in self.bytes if n.startswith(prefix)), key=lambda n: self.bytes[n].total)


def saving_at_energy(
    one: Measured, found: Sequence[Measured], name: str, against: str = BASELINE
) -> float | None:
    """Return the share of another's bytes that a method saves, at its cheapest density among those measured.

    It must deliver no less of the energy than the other, which is sent the top-k as ``one`` says. None: it
    delivers less at every density.
    """
    enough = [
        other.bytes[name].total
        for other in found
        if (other.setting.model, other.setting.workers) == (one.setting.model, one.setting.workers)
        and other.energy[name] >= one.energy["planner"]
    ]
    return 1 - min(enough) / one.bytes[against].total if enough else None


def measure(setting: Setting, workers: int, steps: int) -> Measured:
    """Replay all steps; the first third, in which residuals and planner begin, does not count.

    workers: that were recorded, of which those of the setting come first.
    """
    torch.set_num_threads(1)
    recording = recorded(setting.model, workers, 1, steps)
    module = make_task(make_config(model=setting.model)).model
    replays = {
        name: Replay(module, method, setting.workers, setting.density)
        for name, method in (("planner", "topk"), ("block-topk", "omnireduce"), *((own, own) for own in OWN))
    }
    value_bits = replays["dfs"].value_bits
    sums: dict[str, Bytes] = {}
    energies = {name: Energy() for name in replays}
    first, elements = steps // 3, recording.shape[-1]
    for number, gradients in enumerate(recording):
        sent = {name: replay.step(gradients) for name, replay in replays.items()}
        if number < first:
            continue
        for name, cost in _costs(sent, value_bits):
            sums[name] = sums.get(name, Bytes()) + cost
        for name, one in sent.items():
            energies[name].add(one)
    counted = steps - first
    whole = counted * setting.workers * elements
    density = {name: one.elements / whole for name, one in energies.items()}
    energy = {name: one.delivered for name, one in energies.items()}
    return Measured(setting, counted, sums, density, energy)


def _costs(sent: dict[str, ReplayedStep], value_bits: float) -> Iterator[tuple[str, Bytes]]:
    """Yield every contender's bytes of one step. value_bits: of packed ones."""
    same = sent["planner"]
    flat = np.concatenate(same.chosen, axis=1)
    for block in MASK_SIZES:
        occupied = by_block(flat, block)
        for message in _MESSAGES:
            if block <= message:
                yield f"omnireduce:{block}/{message}", _omnireduce(occupied, block, message)
                packed = _omnireduce(occupied, block, message, value_bits)
                yield f"{PACKED}omnireduce:{block}/{message}", packed
    yield "lists", lists(flat)
    yield f"{PACKED}lists", lists(flat, value_bits)
    yield "bitmaps", bitmaps(flat)
    yield f"{PACKED}bitmaps", bitmaps(flat, value_bits)
    parts = [Occupancy(chosen) for chosen in same.chosen]
    for mask in (None, *MASK_SIZES):
        yield f"weir:{mask or 'dense'}", _fixed(parts, mask)
    own = np.concatenate(sent["block-topk"].chosen, axis=1)
    yield "block-topk", _omnireduce(by_block(own, 256), 256, 256)
    for name in ("planner", *OWN):
        yield name, _bytes(sent[name].counted)


def _bytes(traffic: WireCost) -> Bytes:
    return Bytes(sum(traffic.up), len(traffic.up) * traffic.down, traffic.values_and_indexes)


def _omnireduce(occupied: Flags, block: int, message: int, value_bits: float = 32) -> Bytes:
    cost = omnireduce.on_the_wire(occupied, omnireduce.Setup(block, message, value_bits=value_bits))
    bare = omnireduce.values_and_indexes(occupied, block, value_bits=value_bits)
    return Bytes(cost.up, cost.down, bare.total)


def _fixed(parts: list[Occupancy], mask: int | None) -> Bytes:
    """Return one mask size for all parameters: the cheapest packet block, then the cheapest number of
    levels.
    """
    masks = [mask] * len(parts)

    def cost(block: int, levels: int) -> WireCost:
        return exchange_cost(parts, masks, packet_block=block, levels=levels, slots=SLOTS)

    if mask is None:
        return _bytes(min((cost(block, 1) for block in BLOCK_SIZES), key=lambda t: t.total))
    levels = min(_LEVELS, key=lambda levels: cost(256, levels).total)
    return _bytes(min((cost(block, levels) for block in BLOCK_SIZES), key=lambda t: t.total))


def lists(flat: Flags, value_bits: float = 8 * _VALUE) -> Bytes:
    """Return the bytes of gathered pairs of an index and a value."""
    return _gathered([math.ceil(n * (_INDEX + value_bits / 8)) for n in np.count_nonzero(flat, axis=1)])


def bitmaps(flat: Flags, value_bits: float = 8 * _VALUE) -> Bytes:
    """Return the bytes of gathered bitmaps of all elements, and values."""
    bitmap = -(-flat.shape[1] // 8)
    return _gathered([bitmap + math.ceil(n * value_bits / 8) for n in np.count_nonzero(flat, axis=1)])


def _gathered(sizes: Sequence[int]) -> Bytes:
    """Return the bytes where each worker sends its own once and receives all others'."""
    whole = [size + -(-size // _DATAGRAM) * FRAME_OVERHEAD for size in sizes]
    others = len(sizes) - 1
    return Bytes(sum(whole), others * sum(whole), (1 + others) * sum(sizes))


@dataclass(frozen=True)
class Parameters:
    """The settings, all combinations of what is listed."""

    models: tuple[str, ...] = parameter(("mlp", "cnn", "lm"), "whose gradients", choices=SGD_MODELS)
    densities: tuple[float, ...] = parameter(
        (0.001, 0.01, 0.05, 0.1), "shares of the values that each worker chooses", above=0, most=1
    )
    workers: tuple[int, ...] = parameter((2, 4, 8, 16), "numbers of workers", least=2, most=32)
    steps: int = parameter(12, "recorded; the first third does not count", least=3)

    def settings(self) -> list[Setting]:
        """Return all settings."""
        models = cast(tuple[Model, ...], self.models)
        return [Setting(*one) for one in product(models, self.densities, self.workers)]


def run(parameters: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Record, replay, and compare."""
    cases = [(one, max(parameters.workers), parameters.steps) for one in parameters.settings()]
    with recordings():
        found = simulate(measure, Measured, cases, run)
    yield Table(
        "Saved of OmniReduce-256's bytes",
        tuple(Column(name, show, note) for name, show, note in _COLUMNS),
        tuple(Row(_words(one.setting), _savings(one, found)) for one in found),
        better="more",
        notes=tuple(_notes(found)),
    )
    yield Table(
        "Bytes of all workers in a step",
        (
            Column("bytes", byte_count),
            *(Column(name, byte_count) for name in ("up", "down", "no headers")),
            Column("density", lambda n: f"{n:.2%}", "of what travels from each worker"),
            Column("energy", share, "of the sum of all workers' gradients and residuals, delivered"),
        ),
        tuple(_row(one, name, words) for one in found for name, words in _contenders(one)),
        peers=(_NAMES[BASELINE],),
    )
    yield Plot(
        "Communication cost saved of OmniReduce-256, %",
        [
            Panel(
                name,
                "density, %",
                "saved by DFS, %",
                [
                    Line(
                        f"{model}, {workers} workers",
                        [100 * one.setting.density for one in mine],
                        [100 * one.saving(contender) for one in mine],
                    )
                    for model, workers in product(parameters.models, parameters.workers)
                    if (
                        mine := [m for m in found if (m.setting.model, m.setting.workers) == (model, workers)]
                    )
                ],
                "x",
            )
            for name, contender in (("the same top-k masks, planned", "planner"), ("DFS", "dfs"))
        ],
    )


_NAMES: Final = {
    BASELINE: "OmniReduce-256",
    "block-topk": "block top-k",
    "lists": "lists of pairs",
    "bitmaps": "bitmaps",
    "planner": "planner",
    "dfs": "DFS",
    "exdyna": "ExDyna",
}

_COLUMNS: Final = (
    ("planner", share, "the same top-k masks over Weir, without hindsight"),
    ("DFS", share, "its own choice at the same density, over Weir; ExDyna likewise"),
    ("DFS, equal energy", share, "at the density of this table that costs least and delivers no less"),
    ("ExDyna", share, ""),
    ("lists", share, "(index, value) of 32 bits each, gathered"),
    ("bitmaps", share, "a bit an element and values of 32 bits, gathered"),
    ("block top-k", share, "OmniReduce-256 with its own choice of blocks"),
    ("best b", share, "of OmniReduce's block sizes 1 to 256 and messages of 64, 256 and 1024, in hindsight"),
    ("DFS, no headers", share, "of both only values, and an index of 32 bits to each block"),
    ("planner of best b", share, ""),
    ("DFS of best b", share, ""),
    (
        "packed rival",
        share,
        "the best in hindsight of OmniReduce, lists, bitmaps with DFS's bits a value",
    ),
    ("DFS of packed OmniReduce", share, "with its best block and message size, at equal density"),
    ("DFS of packed rival", share, "at equal density"),
    ("DFS of packed rival, equal energy", share, "at the cheapest density that delivers no less"),
    ("planner of best mask", share, "of Weir's best mask size, in hindsight"),
    ("DFS of best mask", share, ""),
)


def _savings(one: Measured, found: Sequence[Measured]) -> dict[str, float | None]:
    best, mask, rival = one.best("omnireduce:"), one.best("weir:"), one.best(PACKED)
    return {
        "planner": one.saving("planner"),
        "DFS": one.saving("dfs"),
        "DFS, equal energy": saving_at_energy(one, found, "dfs"),
        "ExDyna": one.saving("exdyna"),
        "lists": one.saving("lists"),
        "bitmaps": one.saving("bitmaps"),
        "block top-k": one.saving("block-topk"),
        "best b": one.saving(best),
        "DFS, no headers": 1 - one.bytes["dfs"].bare / one.bytes[BASELINE].bare,
        "planner of best b": one.saving("planner", best),
        "DFS of best b": one.saving("dfs", best),
        "DFS of packed OmniReduce": one.saving("dfs", one.best(f"{PACKED}omnireduce:")),
        "packed rival": one.saving(rival),
        "DFS of packed rival": one.saving("dfs", rival),
        "DFS of packed rival, equal energy": saving_at_energy(one, found, "dfs", rival),
        "planner of best mask": one.saving("planner", mask),
        "DFS of best mask": one.saving("dfs", mask),
    }


def _contenders(one: Measured) -> Iterator[tuple[str, str]]:
    """Yield the contenders that are shown, and their names in the table."""
    yield from _NAMES.items()
    for prefix in ("omnireduce:", PACKED, "weir:"):
        yield one.best(prefix), f"best {prefix[:-1]}"


def _row(one: Measured, name: str, words: str) -> Row:
    cost = one.bytes[name]
    values = {"bytes": cost.total, "up": cost.up, "down": cost.down, "no headers": cost.bare}
    return Row(
        words,
        {
            **{column: count / one.steps for column, count in values.items()},
            "density": one.density.get(name),
            "energy": one.energy.get("planner" if name == BASELINE else name),
        },
        {"setting": _words(one.setting)},
    )


def _notes(found: Sequence[Measured]) -> Iterator[str]:
    """Yield what the tables mean, and what they come to."""
    yield (
        "bytes on the wire of all workers, up and down, every header from Ethernet up; down counts once "
        "for each "
        "worker; no acknowledgements, nothing sent again. OmniReduce-256: top-k masks as its open code "
        "sends them "
        "(RDMA, messages of 256 elements, first block of each column always). Gradients: a dense "
        "training's; each "
        "worker's residuals are kept; the first third of the steps, in which residuals and planner "
        "begin, is not "
        "counted"
    )
    for name in ("planner", *OWN):
        savings = [one.saving(name) for one in found]
        reached = sum(saving >= GOAL for saving in savings)
        blocks = [one.saving(name, "block-topk") for one in found]
        yield (
            f"{name}: saves {min(savings):.1%} to {max(savings):.1%}, at least {GOAL:.2%} in {reached} of "
            f"{len(found)} settings; against block top-k {min(blocks):.1%} to {max(blocks):.1%}; on "
            "average against "
            f"the best fixed b {_mean(found, name, 'omnireduce:'):.1%}, against Weir's best fixed mask "
            f"{_mean(found, name, 'weir:'):.1%}"
        )
    packed = [one.saving("dfs", one.best(f"{PACKED}omnireduce:")) for one in found]
    rivals = [one.saving("dfs", one.best(PACKED)) for one in found]
    fair = [s for one in found if (s := saving_at_energy(one, found, "dfs", one.best(PACKED))) is not None]
    yield (
        f"dfs against the best in hindsight with the same bits a value, at equal density: OmniReduce "
        f"{min(packed):.1%} to {max(packed):.1%}, on average {fmean(packed):.1%}; any of OmniReduce, lists "
        f"and bitmaps {min(rivals):.1%} to {max(rivals):.1%}, on average {fmean(rivals):.1%}, fewer bytes in "
        f"{sum(saved > 0 for saved in rivals)} of {len(found)} settings"
        + (f"; {min(fair):.1%} to {max(fair):.1%} at equal energy ({len(fair)} settings)" if fair else "")
        + ". "
        + ", ".join(
            f"{kind} is the best in {sum(one.best(PACKED).startswith(PACKED + kind) for one in found)}"
            for kind in ("omnireduce", "lists", "bitmaps")
        )
    )
    equal = [saved for one in found if (saved := saving_at_energy(one, found, "dfs")) is not None]
    if equal:
        reached = sum(saved >= GOAL for saved in equal)
        yield (
            f"dfs at equal energy: saves {min(equal):.1%} to {max(equal):.1%}, at least {GOAL:.2%} in "
            f"{reached} of "
            f"the {len(equal)} settings in which some density of the table delivers as much"
        )


def _mean(found: Sequence[Measured], name: str, prefix: str) -> float:
    return fmean(one.saving(name, one.best(prefix)) for one in found)


def _words(setting: Setting) -> str:
    return f"{setting.model}, {100 * setting.density:g} %, {setting.workers} workers"
