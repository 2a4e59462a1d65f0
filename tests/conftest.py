# SPDX-License-Identifier: Apache-2.0
"""Tests skip by name where a machine lacks what their markers say, or fail when ``WEIR_REQUIRE`` names it."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.harness import needs

# Tests run side by side, in processes of their own: one thread each is what there are cores for. Before torch
# is imported, and for what tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["tests.harness.kernels"]

_LONG = ("weir", "examples")  # folders whose tests train models, in many processes

settings.register_profile("weir", deadline=None)  # no timing assertions: machines are shared
settings.load_profile("weir")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a folder for Unix sockets, whose paths have at most 107 characters: tmp_path may take most of
    them.
    """
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        yield Path(folder)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that the test starts be interrupted, although this one may ignore SIGINT.

    It does when a shell put it in the background (`nohup make test &`), and what it starts would, too.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_configure(config: pytest.Config) -> None:
    try:
        needs.required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in needs.MARKERS:
        if item.get_closest_marker(marker) and (reason := needs.why_not(marker)):
            if marker in needs.required():
                pytest.fail(f"WEIR_REQUIRE: {reason}", pytrace=False)
            pytest.skip(reason)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Several processes: the long ones first, for the others to fill up.
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent.name not in _LONG)
