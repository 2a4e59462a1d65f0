# SPDX-License-Identifier: Apache-2.0
"""The tests of test_hook_loss.py, with gradients on a GPU."""

from collections.abc import Iterator

import pytest

import weir
from tests.host_agent.torch import test_hook_loss
from tests.host_agent.torch.test_hook_loss import *  # noqa: F403 its tests
from tests.host_agent.torch.worlds import World

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module", params=test_hook_loss.NETWORKS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    size, network = test_hook_loss.SIZE, test_hook_loss.NETWORKS[request.param]
    with (
        weir.local_cluster(workers=size, network=network) as cluster,
        World(size, cluster.environment, device="cuda") as world,
    ):
        yield world
