# SPDX-License-Identifier: Apache-2.0
"""Needs of some tests that a machine may lack, each with a marker of its name."""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.harness import netns


def _root() -> str | None:
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        return "needs the machine's root, not a user namespace's"
    return netns.why_not()


def on_path(*tools: str) -> str | None:
    """Return which of these tools the machine lacks, as text; None: none."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    return f"needs {' and '.join(missing)} on PATH" if missing else None


NEEDS: Final[dict[str, Callable[[], str | None]]] = {
    "root": _root,
    "bmv2": lambda: on_path("simple_switch_grpc"),
    "simple_switch": lambda: on_path("simple_switch"),
    "p4c": lambda: on_path("p4c-bm2-ss"),
}
"""Markers, each with a function that says what the machine lacks; other tests add theirs."""


@functools.cache
def why_not(marker: str) -> str | None:
    """Return what this machine lacks of what the tests with that marker need; None: nothing."""
    return NEEDS[marker]()


def required() -> frozenset[str]:
    """Return the markers in ``SOFTP4_REQUIRE``, whose tests fail instead of being skipped.

    Raises:
        ValueError: one of them is none.
    """
    asked = frozenset(filter(None, os.environ.get("SOFTP4_REQUIRE", "").split(",")))
    if unknown := asked.difference(NEEDS):
        known = ", ".join(NEEDS)
        raise ValueError(f"required: {', '.join(sorted(unknown))}: expected some of {known}")
    return asked
