# SPDX-License-Identifier: Apache-2.0
"""``weir bench dfs``'s contenders on the same gradients: bytes on the wire, and the energy that they buy.

Each contender is measured at several densities, which makes a curve of bytes by delivered energy. Two of them
are compared at the same energy: where a curve has no point there, it is drawn out between its neighbours, in
the logarithms of bytes and of energy. Beyond its ends nothing is compared.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import torch

from weir.bench.cost_cases import lists
from weir.bench.replay import Replay, ReplayedStep, train
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.encodings import omnireduce
from weir.host_agent.compression.encodings.cost import by_block
from weir.host_agent.compression.encodings.encoding import MASK_SIZES
from weir.train.config import Model, make_config
from weir.train.task import make_task


@dataclass(frozen=True)
class Contender:
    """A method as it is replayed. leave_out: parts of DFS; lane_bits: None: the method's own."""

    method: str
    leave_out: tuple[str, ...] = ()
    lane_bits: LaneBits | None = None


REPLAYED: Final[Mapping[str, Contender]] = {
    "top-k planned": Contender("topk"),
    "top-k planned, packed lanes": Contender("topk", lane_bits="auto"),
    "block top-k": Contender("topk-block", lane_bits="auto"),
    "dfs": Contender("dfs"),
    "dfs without portions": Contender("dfs", ("portions",)),
    "dfs without lists": Contender("dfs", ("lists",)),
    "dfs without sizes": Contender("dfs", ("sizes",)),
    "dfs without packed lanes": Contender("dfs", lane_bits=32),
}
"""Through Weir's switch."""

UNPACKED: Final = "top-k planned"
PLANNED: Final = "top-k planned, packed lanes"
BASELINE: Final = "OmniReduce-256"
DENSE: Final = "dense"
WITH_MOMENTUM: Final = 0.9


def momentum(model: Model) -> float:
    """Return the momentum that a model's trainings have here."""
    return WITH_MOMENTUM if model == "resnet18" else 0.0


class Point(NamedTuple):
    """One contender at one density. bytes: of all workers, both ways, in a step, on average. energy: share of
    the sum of all workers' gradients and residuals that was delivered. density: of what travelled.
    """

    bytes: float
    energy: float
    density: float = 0.0


@dataclass(frozen=True)
class Measured:
    """All contenders at one density. points: Point of each, by name. sizes: what DFS chose, pairs of a block
    size and elements, over all parameters and steps; 0: sent whole. (As JSON has them.)
    """

    points: Mapping[str, Sequence[float]]
    sizes: Sequence[Sequence[int]]


@dataclass
class Curves:
    """All contenders' points of one model, number of workers and seed; and what sizes DFS chose, by density.

    sizes: elements by block size.
    """

    model: str
    workers: int
    seed: int
    points: dict[str, list[Point]] = field(default_factory=dict)
    sizes: dict[float, dict[int, int]] = field(default_factory=dict)


def replay_of(how: Contender, module: torch.nn.Module, workers: int, density: float) -> Replay:
    """Return a contender at its beginning."""
    return Replay(module, how.method, workers, density, lane_bits=how.lane_bits, leave_out=how.leave_out)


def measure(model: Model, workers: int, steps: int, seed: int, density: float) -> Measured:
    """Train densely, and give all contenders the same gradients; the first third of the steps does not count.

    Portions of DFS take some tens of steps to settle, so steps should be more than that.
    """
    torch.set_num_threads(1)
    module = make_task(make_config(model=model)).model
    replays = {name: replay_of(how, module, workers, density) for name, how in REPLAYED.items()}
    first, count = steps // 3, steps - steps // 3
    sent: Counter[str] = Counter()
    elements, wanted, missing = (dict.fromkeys(replays, 0.0) for _ in range(3))
    sizes: Counter[int] = Counter()
    total = 0
    for number, (gradients, _) in enumerate(
        islice(train(model, workers, seed, momentum=momentum(model)), steps)
    ):
        total = gradients.shape[1]
        for name, replay in replays.items():
            step = replay.step(gradients)
            if number < first:
                continue
            wanted[name] += step.wanted
            missing[name] += step.missing
            elements[name] += step.elements
            sent.update(bytes_of(name, step))
            if name == "dfs":
                for mask, chosen in zip(step.masks, step.chosen, strict=True):
                    sizes[mask or 0] += chosen.shape[1]
    points = {}
    for name in sent:
        source = name if name in replays else UNPACKED
        share = elements[source] / (workers * total * count)
        points[name] = Point(sent[name] / count, 1 - missing[source] / wanted[source], share)
    return Measured(points, sorted(sizes.items()))


def bytes_of(contender: str, step: ReplayedStep) -> dict[str, float]:
    """Return a step's bytes by contender: of this one, and of the peers that send the same elements."""
    found: dict[str, float] = {contender: step.counted.total}
    if contender != UNPACKED:
        return found
    flat = np.concatenate(step.chosen, axis=1)
    found["lists of pairs"] = lists(flat).total
    for block in MASK_SIZES:
        setup = omnireduce.Setup(block, 256)
        found[f"OmniReduce-{block}"] = omnireduce.on_the_wire(by_block(flat, block), setup).total
    return found


def dense_bytes(elements: int, workers: int) -> float:
    """Return the values of a dense sum, up and down, without a header."""
    return 8.0 * elements * workers


def bytes_at(points: Sequence[Point], energy: float) -> float | None:
    """Return what a contender takes to deliver so much energy; None: beyond the ends of its curve."""
    curve = sorted((p.energy, p.bytes) for p in points if p.energy > 0)
    if not curve or not curve[0][0] <= energy <= curve[-1][0]:
        return None
    for (low, less), (high, more) in zip(curve, [*curve[1:], curve[-1]], strict=True):
        if low <= energy <= high:
            if high == low:
                return less
            share = (math.log(energy) - math.log(low)) / (math.log(high) - math.log(low))
            return math.exp(math.log(less) + share * (math.log(more) - math.log(less)))
    return None


def saving(curves: Curves, name: str, against: str, energy: float) -> float | None:
    """Return the share of another's bytes that a contender saves at some energy; None: not comparable."""
    mine, theirs = (bytes_at(curves.points[which], energy) for which in (name, against))
    return None if mine is None or theirs is None else 1 - mine / theirs
