# SPDX-License-Identifier: Apache-2.0
"""What the tests of a module share unless it says otherwise: a switch with a controller, and ranks."""

from collections.abc import Iterator

import pytest

import weir
from tests.harness.forked import forked_clusters
from tests.host_agent.torch.worlds import World
from weir.cluster import LocalCluster

__all__ = ["cluster", "forked_clusters", "pair", "world"]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Yield a switch of as many ports as the module's ``HOSTS`` says, or its ``SIZE``."""
    hosts: int = getattr(request.module, "HOSTS", None) or request.module.SIZE
    with weir.local_cluster(workers=hosts) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def world(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield as many ranks as the module's ``SIZE`` says, a host for each; its ``DEVICE`` is the World's."""
    device = getattr(request.module, "DEVICE", None)
    with World(request.module.SIZE, cluster.environment, device=device) as world:
        yield world


@pytest.fixture
def pair(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield two ranks of the test's own, on hosts of the cluster that ``world`` leaves free."""
    taken: int = request.module.SIZE
    with World(2, lambda rank: cluster.environment(taken + rank)) as pair:
        yield pair
