# SPDX-License-Identifier: Apache-2.0
"""Which tests can run here: each marker says what it needs, and a test without it skips with that reason."""

import os
import shutil

import pytest
from hypothesis import settings

settings.register_profile("weir", deadline=None)  # no timing assertions: machines are shared
settings.load_profile("weir")


def _why_not(marker: str) -> str | None:
    if marker == "root":
        return None if os.geteuid() == 0 else "needs root for network namespaces"
    tool = {"bmv2": "simple_switch_grpc", "p4c": "p4c-bm2-ss"}[marker]
    return None if shutil.which(tool) else f"needs {tool} on PATH"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in ("root", "bmv2", "p4c"):
            if item.get_closest_marker(marker) and (reason := _why_not(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
