# SPDX-License-Identifier: Apache-2.0
"""Which tests can run here: each marker says what it needs, and a test without it skips with that reason."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Tests run side by side, in processes of their own: one thread each is what there are cores for. Before torch
# is imported, and for what tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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


def _why_not(marker: str) -> str | None:
    if marker == "root":
        return None if os.geteuid() == 0 else "needs root for network namespaces"
    tool = {"bmv2": "simple_switch_grpc", "p4c": "p4c-bm2-ss"}[marker]
    return None if shutil.which(tool) else f"needs {tool} on PATH"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Several processes: the long ones first, for the others to fill up.
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent.name not in _LONG)
    for item in items:
        for marker in ("root", "bmv2", "p4c"):
            if item.get_closest_marker(marker) and (reason := _why_not(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
