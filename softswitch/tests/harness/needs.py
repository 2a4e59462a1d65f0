# SPDX-License-Identifier: Apache-2.0
"""Needs of some tests that a machine may lack, each with a marker of its name."""

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from weir import netns

SYSTEM_PYTHON: Final = "/usr/bin/python3"  # the one that Debian's Mininet is installed for


def _root() -> str | None:
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        return "needs the machine's root, not a user namespace's"
    reason = netns.why_not()
    return f"needs network namespaces: {reason}" if reason else None


def _on_path(*tools: str) -> str | None:
    missing = [tool for tool in tools if not shutil.which(tool)]
    return f"needs {' and '.join(missing)} on PATH" if missing else None


def _mininet() -> str | None:
    probe = [SYSTEM_PYTHON, "-c", "import mininet.net"]
    if (
        not os.access(SYSTEM_PYTHON, os.X_OK)
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        return "needs the system's Mininet package (apt install mininet)"
    if reason := _on_path("ip", "ifconfig", "mnexec"):
        return reason
    seen = ["mnexec", "-a", str(os.getpid()), "test", "-e", __file__]
    if subprocess.run(seen, capture_output=True, check=False).returncode:
        return "needs Mininet's hosts to see this folder: in a chroot they do not"
    return None


def _cuda() -> str | None:
    import torch  # for the tests that ask only

    return None if torch.cuda.is_available() else "needs a CUDA device"


_NEEDS: Final[dict[str, Callable[[], str | None]]] = {
    "root": _root,
    "bmv2": lambda: _on_path("simple_switch_grpc"),
    "simple_switch": lambda: _on_path("simple_switch"),
    "p4c": lambda: _on_path("p4c-bm2-ss"),
    "tofino": lambda: _on_path("p4c-barefoot", "bfas"),
    "mininet": _mininet,
    "tshark": lambda: _on_path("tshark"),
    "cuda": _cuda,
}
MARKERS: Final = tuple(_NEEDS)


@functools.cache
def why_not(marker: str) -> str | None:
    """Return what this machine lacks of what the tests with that marker need; None: nothing."""
    return _NEEDS[marker]()


def required() -> frozenset[str]:
    """Return the markers in ``WEIR_REQUIRE``, whose tests fail instead of being skipped.

    Raises:
        ValueError: one of them is none.
    """
    asked = frozenset(filter(None, os.environ.get("WEIR_REQUIRE", "").split(",")))
    if unknown := asked.difference(MARKERS):
        raise ValueError(f"WEIR_REQUIRE: {', '.join(sorted(unknown))}: expected some of {', '.join(MARKERS)}")
    return asked
