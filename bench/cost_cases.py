# SPDX-License-Identifier: Apache-2.0
"""Bytes on the wire of each way to send the same recorded gradients, in one setting of ``weir bench cost``.

The first group has the same elements to send, each worker's top-k; they differ in how these are written down:

- ``omnireduce:b/m``: blocks of b elements in messages of m, as OmniReduce's open code sends them
  (host_agent.compression.encodings.omnireduce);
- ``lists``: every worker's (index, value) pairs, gathered by all others, 32 bits each;
- ``weir:m``: through Weir's switch with one mask size m (``weir:dense``: with none) for all parameters and
  steps, and the packet block and tree levels that cost least in hindsight;
- ``planner``: through Weir's switch as planned, without hindsight.

The second has methods with a choice of their own at the same density, through Weir's switch in the encoding
they come with, and ``block-topk``: OmniReduce with the block top-k of its authors, as its open code sends it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from weir.bench.replay import SLOTS, Recording, Replay, ReplayedStep
from weir.host_agent.compression.encodings import omnireduce
from weir.host_agent.compression.encodings.cost import Flags, Occupancy, WireCost, by_block, exchange_cost
from weir.host_agent.compression.encodings.encoding import MASK_SIZES
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.train.config import Model, make_config
from weir.train.task import make_task
from weir.wire.definition import BLOCK_SIZES

OWN: Final = ("dfs", "exdyna")
BASELINE: Final = "omnireduce:256/256"
"""Its example configuration."""

_MESSAGES: Final = (64, 256, 1024)
_LEVELS: Final = (1, 2, 3)
_PAIR: Final = 8  # bytes of an index and a value
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
        """Return the bytes in both directions, headers included."""
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

    def saving(self, name: str, against: str = BASELINE) -> float:
        """Return the share of the other's bytes that it saves."""
        return 1 - self.bytes[name].total / self.bytes[against].total

    def best(self, prefix: str) -> str:
        """Return the cheapest contender whose name begins so."""
        return min((n for n in self.bytes if n.startswith(prefix)), key=lambda n: self.bytes[n].total)


def saving_at_energy(one: Measured, found: Sequence[Measured], name: str) -> float | None:
    """Return what a method saves of the baseline's bytes at the density, of those measured, that costs least.

    It must deliver no less of the energy than the baseline, which is sent as much as ``one`` says. None: it
    delivers less at every density.
    """
    enough = [
        other.bytes[name].total
        for other in found
        if (other.setting.model, other.setting.workers) == (one.setting.model, one.setting.workers)
        and other.energy[name] >= one.energy["planner"]
    ]
    return 1 - min(enough) / one.bytes[BASELINE].total if enough else None


def measure(setting: Setting, recording: Recording) -> Measured:
    """Replay all steps; the first third, in which residuals and planner begin, does not count."""
    module = make_task(make_config(model=setting.model)).model
    replays = {
        name: Replay(module, method, setting.workers, setting.density)
        for name, method in (("planner", "topk"), ("block-topk", "omnireduce"), *((own, own) for own in OWN))
    }
    sums: dict[str, Bytes] = {}
    travelled = dict.fromkeys(replays, 0)
    wanted, missing = dict.fromkeys(replays, 0.0), dict.fromkeys(replays, 0.0)
    first, elements = recording.steps // 3, recording.open().shape[-1]
    for number, gradients in enumerate(recording.open()):
        sent = {name: replay.step(gradients) for name, replay in replays.items()}
        if number < first:
            continue
        for name, cost in _costs(sent):
            sums[name] = sums.get(name, Bytes()) + cost
        for name, one in sent.items():
            travelled[name] += one.elements
            wanted[name] += one.wanted
            missing[name] += one.missing
    steps = recording.steps - first
    whole = steps * setting.workers * elements
    density = {name: count / whole for name, count in travelled.items()}
    energy = {name: 1 - missing[name] / wanted[name] for name in replays}
    return Measured(setting, steps, sums, density, energy)


def _costs(sent: dict[str, ReplayedStep]) -> Iterator[tuple[str, Bytes]]:
    """Yield every contender's bytes of one step."""
    same = sent["planner"]
    flat = np.concatenate(same.chosen, axis=1)
    for block in MASK_SIZES:
        occupied = by_block(flat, block)
        for message in _MESSAGES:
            if block <= message:
                yield f"omnireduce:{block}/{message}", _omnireduce(occupied, block, message)
    yield "lists", lists(flat)
    parts = [Occupancy(chosen) for chosen in same.chosen]
    for mask in (None, *MASK_SIZES):
        yield f"weir:{mask or 'dense'}", _fixed(parts, mask)
    own = np.concatenate(sent["block-topk"].chosen, axis=1)
    yield "block-topk", _omnireduce(by_block(own, 256), 256, 256)
    for name in ("planner", *OWN):
        yield name, _bytes(sent[name].counted)


def _bytes(traffic: WireCost) -> Bytes:
    return Bytes(sum(traffic.up), len(traffic.up) * traffic.down, traffic.values_and_indexes)


def _omnireduce(occupied: Flags, block: int, message: int) -> Bytes:
    cost = omnireduce.on_the_wire(occupied, omnireduce.Setup(block, message))
    return Bytes(cost.up, cost.down, omnireduce.values_and_indexes(occupied, block).total)


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


def lists(flat: Flags) -> Bytes:
    """Return the bytes of gathered pairs: each worker sends its own once and receives all others."""
    pairs = [int(n) * _PAIR for n in np.count_nonzero(flat, axis=1)]
    whole = [size + -(-size // _DATAGRAM) * FRAME_OVERHEAD for size in pairs]
    others = len(pairs) - 1
    return Bytes(sum(whole), others * sum(whole), (1 + others) * sum(pairs))


def settings(models: list[Model], densities: list[float], workers: list[int]) -> list[Setting]:
    """Return the grid."""
    return [Setting(*one) for one in product(models, densities, workers)]
