# SPDX-License-Identifier: Apache-2.0
"""The tests of test_hook_encodings.py, with gradients on a GPU."""

from collections.abc import Iterator

import pytest

import weir
from tests.host_agent.torch import test_hook_encodings
from tests.host_agent.torch.test_hook_encodings import *  # noqa: F403 its tests
from tests.host_agent.torch.worlds import World

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    size = test_hook_encodings.SIZE
    with (
        weir.local_cluster(workers=size) as cluster,
        World(size, cluster.environment, device="cuda") as world,
    ):
        yield world
