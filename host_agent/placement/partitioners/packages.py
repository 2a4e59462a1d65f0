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
_LARGE: Final = 1_000_000  # features of all samples, above which Mt-KaHyPar uses its fast preset


class MissingPackageError(RuntimeError):
    """A program that is not installed; the message says how to get it."""


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{name} is not installed ({error}): pip install 'weir-ina[placement]', or use another "
            "--partitioner"
        ) from None


@lru_cache(maxsize=KEPT)
def metis(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Cut the bipartite graph of samples and features by METIS; features weigh nothing."""
    package = _package("pymetis")
    if machines == 1:
        return np.zeros(len(samples), np.int64)
    count = len(samples)
    degrees = np.concatenate(
        [np.diff(samples.starts), np.bincount(samples.features, minlength=samples.width)]
    )
    of_feature = samples.rows[np.argsort(samples.features, kind="stable")]
    _, places = package.part_graph(
        machines,
        adjacency=package.CSRAdjacency(
            np.concatenate([[0], np.cumsum(degrees)]), np.concatenate([count + samples.features, of_feature])
        ),
        vweights=np.repeat([1, 0], [count, samples.width]),
        options=package.Options(seed=seed, ufactor=max(1, int(1000 * slack / 2))),
    )
    return np.array(places[:count], np.int64)


@lru_cache(maxsize=KEPT)
def mtkahypar(samples: Samples, machines: int, slack: float, seed: int) -> Integers:
    """Cut the hypergraph whose nets are the features by Mt-KaHyPar.

    Its connectivity metric, the sum over features of users - 1, is just what is pulled when each parameter is
    with one of its users. Of its presets the one for small graphs finds the same partition each time; QUALITY
    finds others, within half a percent. The one for large graphs takes a sixth of that one's time.
    """
    package = _package("mtkahypar")
    if machines == 1:
        return np.zeros(len(samples), np.int64)
    package.set_seed(seed)
    program = _program(package)
    presets = package.PresetType
    large = samples.features.size > _LARGE
    context = program.context_from_preset(presets.LARGE_K if large else presets.DETERMINISTIC_QUALITY)
    most, share = cap(len(samples), machines, slack), -(-len(samples) // machines)
    context.set_partitioning_parameters(machines, most / share - 1, package.Objective.KM1)
    context.logging = False
    nets = [column.tolist() for column in samples.columns() if column.size > 1]
    graph = program.create_hypergraph(context, len(samples), len(nets), nets)
    cut = graph.partition(context)
    return np.array(cut.get_partition(), np.int64)


@cache
def _program(package: Any) -> Any:
    """Return the running program: it can be started once in a process."""
    return package.initialize(2)
