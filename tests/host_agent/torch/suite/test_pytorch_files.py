# SPDX-License-Identifier: Apache-2.0
"""Gloo's tests in pytorch's repository: what Gloo passes on this machine, Weir passes.

They need ``WEIR_PYTORCH_TESTS``, see ``pytorch_files.py``. ``differences.py`` says which ones Weir does not
pass, and why not.
"""

from collections.abc import Iterator

import pytest

import weir
from tests.host_agent.torch.suite.differences import DIFFERENCES_OF_FILES
from tests.host_agent.torch.suite.pytorch_files import FILES, FOLDER, run_here
from tests.host_agent.torch.suite.ranks import SIZE, Ranks
from tests.host_agent.torch.suite.test_torch_suite import every_name, passes_as_gloo

WHOLE = f"needs the folder test/distributed of pytorch, with {', '.join(FILES)}: WEIR_PYTORCH_TESTS=FOLDER"
pytestmark = pytest.mark.skipif(not FOLDER, reason=WHOLE)


@pytest.fixture(scope="module")
def ours() -> Iterator[Ranks]:
    with weir.local_cluster(workers=SIZE) as cluster:
        ranks = Ranks("weir", cluster.environment, run_here)
        yield ranks
        ranks.close()


@pytest.fixture(scope="module")
def gloo() -> Iterator[Ranks]:
    ranks = Ranks("gloo", run_here=run_here)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", every_name("pytorch_files") if FOLDER else ["each"])
def test_weir_passes_what_gloo_passes(ours: Ranks, gloo: Ranks, name: str) -> None:
    passes_as_gloo(name, ours, gloo, DIFFERENCES_OF_FILES)


def test_list_names_tests_that_there_are() -> None:
    assert set(DIFFERENCES_OF_FILES) <= set(every_name("pytorch_files"))
