# SPDX-License-Identifier: Apache-2.0
"""Weir's partition: the best that published programs find, improved for what they do not know of.

They minimise the sum over features of users - 1. That is all that travels only if every parameter can be with
one of its users; but a machine has no room for more than its share of the parameters. And they know no
bottleneck: one machine may get all the long samples.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.placement.partitioners.greedy import greedy
from weir.host_agent.placement.partitioners.packages import MissingPackageError, metis, mtkahypar
from weir.host_agent.placement.partitioners.simple import by_hash, random
from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.servers import place_parameters
from weir.host_agent.placement.traffic import VALUE_BYTES, Placement, Traffic, cap, traffic, users

_Counts = npt.NDArray[np.int32]
_Floats = npt.NDArray[np.float64]

_ENOUGH: Final = 1e-3  # of the cost: a pass that gains less is the last
_PASSES: Final = 12
_UNEVEN: Final = 1.1  # times the mean load of machines, from where on load is a cost of its own: our choice
_TARGET: Final = 0.9  # of a bound is aimed at, as loads are estimates until parameters are placed
_TRIES: Final = 4
_DEAR: Final = 8.0  # what a transfer beyond that costs, in transfers
_NEVER: Final = 1e18


def refined(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Improve what Mt-KaHyPar, METIS (where they are installed) and the greedy way find, and return the best.

    That is the one with the least total traffic among those that are no worse than the best of a random, a
    hashed and the greedy partition, in total and at the bottleneck; else the one that is least beyond these.
    """
    simple = [make(samples, machines, slack, seed) for make in (random, by_hash, greedy)]
    starts = list(simple)
    for make in (metis, mtkahypar):
        try:
            starts.append(make(samples, machines, slack, seed))
        except MissingPackageError:
            continue
    best = [cost_of(samples, places, machines, slack) for places in simple]
    bound, least = (min(getattr(cost, what) for cost in best) for what in ("bottleneck", "total"))
    better = [_within(samples, places, machines, slack, seed, bound) for places in starts]
    found = [*starts, *better]
    costs = [cost_of(samples, places, machines, slack) for places in found]

    def rank(index: int) -> tuple[float, int]:
        cost = costs[index]
        beyond = max(cost.bottleneck / max(bound, 1), 1.0) * max(cost.total / max(least, 1), 1.0)
        return beyond, cost.total

    return found[min(range(len(found)), key=rank)]


def cost_of(samples: Samples, places: Integers, machines: int, slack: float) -> Traffic:
    """Return the traffic of a partition, its parameters placed as well as they can be."""
    parameters = place_parameters(users(samples, places, machines), slack)
    return traffic(samples, Placement(machines, places, parameters))


def _within(
    samples: Samples, places: Integers, machines: int, slack: float, seed: int, bound: int
) -> Integers:
    """Return a better partition than ``places`` whose bottleneck is within the bound, if one is found."""
    target = _TARGET * bound
    for _ in range(_TRIES):
        places = improve(samples, places, machines, slack, seed, target)
        bottleneck = cost_of(samples, places, machines, slack).bottleneck
        if bottleneck <= bound:
            break
        target *= _TARGET * bound / bottleneck
    return places


def improve(
    samples: Samples, places: Integers, machines: int, slack: float, seed: int, bound: float
) -> Integers:
    """Return a better partition than ``places``: samples move one by one while that gains something.

    Passes over all samples in random order, until one gains less than a thousandth (Fiduccia and Mattheyses,
    1982, without their buckets). bound: bytes that no machine should send and receive, by estimate.
    """
    state = _State(samples, places.copy(), machines, slack, bound / (2 * VALUE_BYTES))
    rng = np.random.default_rng(seed)
    for _ in range(_PASSES):
        state.level()
        gained = sum(state.move(int(sample)) for sample in rng.permutation(len(samples)))
        if gained <= _ENOUGH * state.pairs:
            break
    return state.places


def _share(degree: npt.NDArray[np.generic]) -> _Floats:
    """Return what a parameter with so many users costs each of them on average, pulling and serving."""
    return 2.0 * (degree - 1.0) / np.maximum(degree, 1)  # type: ignore[no-any-return, operator]


class _State:
    """A partition, and what moving a sample changes.

    counts: int32[machines, width], how many samples of a machine use a parameter. degree: machines that do.
    private: parameters that a machine alone uses. load: an estimate of the values that a machine pulls and
    serves, each parameter's transfers shared among its users. bound: for these.
    """

    def __init__(self, samples: Samples, places: Integers, machines: int, slack: float, bound: float) -> None:
        self.places = places
        self._samples = samples
        self._most_samples = cap(len(samples), machines, slack)
        self._most_parameters = cap(samples.width, machines, slack)
        self._sizes = np.bincount(places, minlength=machines)
        self._counts: _Counts = np.zeros((machines, samples.width), np.int32)
        np.add.at(self._counts, (places[samples.rows], samples.features), 1)
        used = self._counts > 0
        self._degree = used.sum(axis=0)
        self._private = (used & (self._degree == 1)).sum(axis=1)
        self._load = used @ _share(self._degree)
        self._bound = bound
        self._limit = _NEVER

    @property
    def pairs(self) -> int:
        """Return how many (machine, parameter) pairs are in use."""
        return int(self._degree.sum())

    def level(self) -> None:
        """Begin a pass: from here on, loads beyond a little more than the mean of now cost something."""
        self._limit = _UNEVEN * float(self._load.mean())

    def move(self, sample: int) -> float:
        """Move a sample to where it costs least, if anything is gained by it; return what is."""
        here, features = int(self.places[sample]), self._samples[sample]
        local, degree = self._counts[:, features], self._degree[features]
        last, has = local[here] == 1, local > 0
        costs = (~has).sum(axis=1) - float(last.sum())
        costs += self._overflow(here, last, has, degree)
        here_load, there_load = self._loads(here, last, has, degree)
        hinge = self._hinge
        costs += hinge(self._load[here] + here_load) - hinge(self._load[here])
        costs += hinge(self._load + there_load) - hinge(self._load)
        costs[self._sizes >= self._most_samples] = _NEVER
        costs[here] = 0.0
        there = int(np.argmin(costs))
        if costs[there] >= -1e-9:
            return 0.0
        self._put(sample, here, there, features)
        return -float(costs[there])

    def _hinge(self, load: _Floats) -> _Floats:
        return np.maximum(load - self._limit, 0.0) + _DEAR * np.maximum(load - self._bound, 0.0)

    def _overflow(
        self, here: int, last: npt.NDArray[np.bool_], has: npt.NDArray[np.bool_], degree: Integers
    ) -> _Floats:
        """Return for each target how many more private parameters find no room with their only user."""
        away = int((degree == 1).sum())  # no longer private here, wherever the sample goes
        joined = int((last & (degree == 1)).sum()) + (last & (degree == 2) & has).sum(axis=1)

        def over(private: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return np.maximum(private - self._most_parameters, 0)

        mine = over(self._private[here] - away) - over(self._private[here])
        return (mine + over(self._private + joined) - over(self._private)).astype(np.float64)

    def _loads(
        self, here: int, last: npt.NDArray[np.bool_], has: npt.NDArray[np.bool_], degree: Integers
    ) -> tuple[_Floats, _Floats]:
        """Return for each target how the loads of here and there change."""
        now, more, less = _share(degree), _share(degree + 1), _share(degree - 1)
        new = ~has
        mine = -float(now[last].sum()) + np.where(new & ~last, more - now, 0.0).sum(axis=1)
        theirs = np.where(new, np.where(last, now, more), np.where(last, less - now, 0.0)).sum(axis=1)
        return mine, theirs

    def _put(self, sample: int, here: int, there: int, features: Integers) -> None:
        before = self._counts[:, features] > 0
        share = _share(self._degree[features])
        private = before & (self._degree[features] == 1)
        self._counts[here, features] -= 1
        self._counts[there, features] += 1
        after = self._counts[:, features] > 0
        self._degree[features] = degree = after.sum(axis=0)
        self._load += after @ _share(degree) - before @ share
        self._private += (after & (degree == 1)).sum(axis=1) - private.sum(axis=1)
        self._sizes[here] -= 1
        self._sizes[there] += 1
        self.places[sample] = there
