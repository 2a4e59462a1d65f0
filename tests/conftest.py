# SPDX-License-Identifier: Apache-2.0
"""Settings of Weir's tests, and what all tests of the repository share (``tests.harness.session``)."""

import os
from collections.abc import Iterator

import pytest

from tests.harness import weir_needs

weir_needs.add()

from tests.harness.base import fork_templates  # noqa: E402
from tests.harness.processes import none_after_failure  # noqa: E402
from tests.harness.session import *  # noqa: E402, F403

# Tests run side by side, in processes of their own: one thread each is what there are cores for. Before torch
# is imported, and for what tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# They start many processes, which import Weir: none compiles it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

fork_templates()

pytest_plugins = ["tests.harness.kernels"]

# Folders whose tests train models, in many processes.
_LONG = ("weir", "deploy", "examples", "bench", "torch", "suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Several processes: the long ones first, for the others to fill up.
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent.name not in _LONG)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with none_after_failure():
        return (yield)
