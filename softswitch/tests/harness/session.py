# SPDX-License-Identifier: Apache-2.0
"""What every test of the repository has: fixtures, and markers that skip by name or fail. For conftest.py.

Tests skip by name where a machine lacks what their markers say, or fail when ``SOFTP4_REQUIRE`` names it.
"""

import gc
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.harness import needs
from tests.harness.effort import LONG, examples

__all__ = [
    "interruptible",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_runtest_setup",
    "short_path",
]

# No timing assertions: machines are shared.
settings.register_profile("repository", max_examples=examples(100), deadline=None)
settings.load_profile("repository")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a folder for Unix sockets, whose paths have at most 107 characters: tmp_path may take most of
    them.
    """
    with tempfile.TemporaryDirectory(prefix="test-") as folder:
        yield Path(folder)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that the test starts be interrupted, although this one may ignore SIGINT.

    It does when a shell put it in the background (`nohup make test &`), and what it starts would, too.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_configure() -> None:
    try:
        needs.required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection() -> None:
    """Keep the garbage collector off what lives to the end: thousands of tests, and what they import."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in needs.NEEDS:
        if item.get_closest_marker(marker) and (reason := needs.why_not(marker)):
            if marker in needs.required():
                pytest.fail(f"required: {reason}", pytrace=False)
            pytest.skip(reason)
    if not LONG and item.get_closest_marker("long"):
        pytest.skip("long tests are not asked for")
