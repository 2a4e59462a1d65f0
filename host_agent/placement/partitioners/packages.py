# SPDX-License-Identifier: Apache-2.0
"""Partitions by published programs: METIS, and Mt-KaHyPar with the connectivity metric.

They come with ``pip install 'weir-ina[placement]'``.
"""

from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final

import numpy as np

from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.traffic import cap

KEPT: Final = 4  # partitions, as others begin with them
_MOST_USERS: Final = 1_000  # samples of a feature that METIS's graph still connects


class MissingPackageError(RuntimeError):
    """A program that is not installed; the message says how to get it."""


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{name} is not installed ({error}): pip install 'weir-ina[placement]', or another --method"
        ) from None


@lru_cache(maxsize=KEPT)
def metis(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Cut the bipartite graph of samples and features by METIS; features weigh nothing.

    Features of more than 1,000 samples are left out: they are needed everywhere.
    """
    package = _package("pymetis")
    if machines == 1:
        return np.zeros(len(samples), np.int64)
    count = len(samples)
    columns = samples.columns()
    near = [column if column.size <= _MOST_USERS else column[:0] for column in columns]
    kept = np.array([column.size > 0 for column in near])[samples.features]
    rows = [
        count + samples[sample][kept[samples.starts[sample] : samples.starts[sample + 1]]]
        for sample in range(count)
    ]
    adjacent = [*rows, *near]
    starts = np.concatenate([[0], np.cumsum([len(neighbours) for neighbours in adjacent])])
    weights = [1] * count + [0] * samples.width
    options = package.Options(seed=seed, ufactor=max(1, int(1000 * slack / 2)))
    _, places = package.part_graph(
        machines,
        adjacency=package.CSRAdjacency(starts.tolist(), np.concatenate(adjacent).tolist()),
        vweights=weights,
        options=options,
    )
    return np.array(places[:count], np.int64)


@lru_cache(maxsize=KEPT)
def mtkahypar(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Cut the hypergraph whose nets are the features by Mt-KaHyPar.

    Its connectivity metric, the sum over features of users - 1, is just what is pulled when each parameter is
    with one of its users. Of its presets this one finds the same partition each time; QUALITY finds others,
    within half a percent.
    """
    package = _package("mtkahypar")
    if machines == 1:
        return np.zeros(len(samples), np.int64)
    package.set_seed(seed)
    program = _program(package)
    context = program.context_from_preset(package.PresetType.DETERMINISTIC_QUALITY)
    most, share = cap(len(samples), machines, slack), -(-len(samples) // machines)
    context.set_partitioning_parameters(machines, most / share - 1, package.Objective.KM1)
    context.logging = False
    nets = [column.tolist() for column in samples.columns() if column.size > 1]
    graph = program.create_hypergraph(context, len(samples), len(nets), nets)
    cut = graph.partition(context)
    return np.array([cut.block_id(sample) for sample in range(len(samples))], np.int64)


@cache
def _program(package: Any) -> Any:
    """Return the running program: it can be started once in a process."""
    return package.initialize(2)
