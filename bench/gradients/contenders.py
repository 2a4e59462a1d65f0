# SPDX-License-Identifier: Apache-2.0
"""DFS, its parts and its peers on the same gradients: bytes on the wire, and the energy that they buy.

Each contender is measured at several densities, which makes a curve of bytes by delivered energy. Two of them
are compared at the same energy: where a curve has no point there, it is drawn out between its neighbours, in
the logarithms of bytes and of energy. Beyond its ends nothing is compared.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import torch

from weir.bench.gradients.cost import bitmaps, lists
from weir.bench.gradients.replay import Energy, Gradients, Replay, ReplayedStep, recorded, train
from weir.host_agent.collectives import NonFiniteError
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.encodings import omnireduce
from weir.host_agent.compression.encodings.cost import by_block
from weir.host_agent.compression.encodings.encoding import MASK_SIZES
from weir.host_agent.compression.encodings.position_lists import PositionList
from weir.host_agent.compression.sparsifiers.dfs_blocks import energies
from weir.train.config import Model, make_config
from weir.train.task import accuracy, make_task


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
PACKED: Final = "packed "
"""Before the names of peers with as few bits a value as DFS."""

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
    """All contenders at one density, as JSON has them.

    Attributes:
        points: Point of each, by name.
        sizes: pairs of a block size that DFS chose and elements, of all parameters and steps; 0: sent whole.
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
    energies = {name: Energy() for name in replays}
    sizes: Counter[int] = Counter()
    total = 0
    for number, gradients in enumerate(recorded(model, workers, seed, steps, momentum(model))):
        total = gradients.shape[1]
        for name, replay in replays.items():
            step = replay.step(gradients)
            if number < first:
                continue
            energies[name].add(step)
            sent.update(bytes_of(name, step, replay.value_bits))
            if name == "dfs":
                for mask, chosen in zip(step.masks, step.chosen, strict=True):
                    sizes[mask or 0] += chosen.shape[1]
    points = {}
    for name in sent:
        one = energies.get(name, energies[PLANNED if name.startswith(PACKED) else UNPACKED])
        points[name] = Point(sent[name] / count, one.delivered, one.elements / (workers * total * count))
    return Measured(points, sorted(sizes.items()))


def bytes_of(contender: str, step: ReplayedStep, value_bits: float) -> dict[str, float]:
    """Return a step's bytes by contender: of this one, and of the peers that send the same elements.

    value_bits: of the contender's replay.
    """
    found: dict[str, float] = {contender: step.counted.total}
    if contender not in (UNPACKED, PLANNED):
        return found
    flat = np.concatenate(step.chosen, axis=1)
    packed = PACKED if contender == PLANNED else ""
    found[f"{packed}lists of pairs"] = lists(flat, value_bits).total
    found[f"{packed}bitmaps"] = bitmaps(flat, value_bits).total
    for block in MASK_SIZES:
        setup = omnireduce.Setup(block, 256, value_bits=value_bits)
        found[f"{packed}OmniReduce-{block}"] = omnireduce.on_the_wire(by_block(flat, block), setup).total
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


SIZES: Final = (1, 2, 4, 16, 64, 256)
_EVERY: Final = 4


@dataclass(frozen=True)
class Runs:
    """The sum of all gradients and residuals of a training's workers, at one density.

    Attributes:
        delivered: pairs of a block size and a share of the energy: that of the best blocks of each parameter
            that take no more bits than its largest elements, positions and values.
        together: of the largest elements, the share that is followed by another one.
    """

    delivered: Sequence[Sequence[float]]
    together: float


def together(density: float, model: Model, workers: int, steps: int, seed: int) -> Runs:
    """Train densely beside DFS in blocks of one element; look at every fourth of the later steps."""
    torch.set_num_threads(1)
    module = make_task(make_config(model=model)).model
    replay = replay_of(REPLAYED["dfs without sizes"], module, workers, density)
    value_bits = replay.ranks[0].gradients.sparsifier.value_bits
    found = dict.fromkeys(SIZES, 0.0)
    whole, largest, followed = 0.0, 0, 0
    for number, gradients in enumerate(recorded(model, workers, seed, steps, momentum(model))):
        if number >= steps // 3 and number % _EVERY == 0:
            own = [
                rank.gradients.compensated(replay.layout, torch.from_numpy(gradient))
                for rank, gradient in zip(replay.ranks, gradients, strict=False)
            ]
            wanted = torch.stack(own).sum(dim=0)
            whole += float(wanted.double().square().sum())
            for segment in replay.layout:
                vector = wanted[segment.in_vector]
                count = max(1, round(density * segment.length))
                chosen = torch.zeros(segment.length, dtype=torch.bool)
                chosen[torch.topk(vector.abs(), count, sorted=False).indices] = True
                largest += count
                followed += int((chosen[1:] & chosen[:-1]).sum())
                for size, energy in delivered(vector, count, value_bits).items():
                    found[size] += energy
        replay.step(gradients)
    return Runs([(size, found[size] / whole) for size in SIZES], followed / max(1, largest))


def delivered(vector: torch.Tensor, count: int, value_bits: float) -> dict[int, float]:
    """Return the energy of a parameter's best blocks of each size, for the bits of ``count`` values."""

    def bits(blocks: int, size: int) -> float:
        return PositionList.of(-(-vector.numel() // size), blocks).bits + blocks * size * value_bits

    budget, found = bits(count, 1), {}
    for size in SIZES:
        fits, beyond = 0, min(count, -(-vector.numel() // size)) + 1
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if bits(middle, size) <= budget else (fits, middle)
        held = energies(vector, size)
        found[size] = float(torch.topk(held, fits, sorted=False).values.double().sum())
    return found


@dataclass(frozen=True)
class Trained:
    """One training's end. accuracy: on held-out data, 0 where it diverged. bytes: of all workers in a step,
    both ways, by contender: those that send the same elements train alike.
    """

    accuracy: float
    bytes: Mapping[str, float]


def trained(model: Model, contender: str, density: float, workers: int, steps: int, seed: int) -> Trained:
    """Train; the learning rate goes down to nothing, else the end would be a matter of chance.

    contender: of REPLAYED, or DENSE.
    """
    torch.set_num_threads(1)
    how = REPLAYED.get(contender)
    task = make_task(make_config(model=model, workers=workers, seed=seed))
    replay = None if how is None else replay_of(how, task.model, workers, density)
    sent: dict[str, float] = defaultdict(float)
    done = 0

    def average(gradients: Gradients) -> torch.Tensor:
        nonlocal done
        done += 1
        if replay is None:
            sent[DENSE] += dense_bytes(gradients.shape[1], workers)
            return torch.from_numpy(gradients.mean(axis=0))
        step = replay.step(gradients)
        for name, count in bytes_of(contender, step, replay.value_bits).items():
            sent[name] += count
        return torch.cat(step.total)

    training = train(model, workers, seed, task=task, average=average, momentum=momentum(model), decay=steps)
    try:
        for _ in islice(training.steps, steps + 1):  # a step is applied when the next one is asked for
            pass
        reached = accuracy(task.model, task.data.test)
    except NonFiniteError:
        reached = 0.0
    return Trained(reached, {name: total / done for name, total in sent.items()})
