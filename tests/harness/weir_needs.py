# SPDX-License-Identifier: Apache-2.0
"""Needs of Weir's tests beside the switch's (``tests.harness.needs``), and how much all of them do.

``WEIR_REQUIRE`` and ``WEIR_TESTS`` say for all tests of the repository what ``SOFTP4_REQUIRE`` and
``SOFTP4_TESTS`` say for the switch's alone.
"""

import os
import shutil
import subprocess
from typing import Final

from tests.harness import needs
from weir.netns import Namespace

SYSTEM_PYTHON: Final = "/usr/bin/python3"  # the one that Debian's Mininet is installed for


def _mininet() -> str | None:
    probe = [SYSTEM_PYTHON, "-c", "import mininet.net"]
    if (
        not os.access(SYSTEM_PYTHON, os.X_OK)
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        return "needs the system's Mininet package (apt install mininet)"
    if reason := needs.on_path("ip", "ifconfig", "mnexec"):
        return reason
    seen = ["mnexec", "-a", str(os.getpid()), "test", "-e", __file__]
    if subprocess.run(seen, capture_output=True, check=False).returncode:
        return "needs Mininet's hosts to see this folder: in a chroot they do not"
    return None


def _cuda() -> str | None:
    import torch  # for the tests that ask only

    return None if torch.cuda.is_available() else "needs a CUDA device"


def _wireguard() -> str | None:
    if (reason := needs.on_path("ip", "wg")) or shutil.which("wireguard-go"):
        return reason
    with Namespace() as probe:
        command = [*probe.prefix, "ip", "link", "add", "wg0", "type", "wireguard"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return None
    return "needs WireGuard in the kernel, or wireguard-go on PATH"


def add() -> None:
    """Add Weir's needs and settings. Before ``tests.harness.effort`` is imported."""
    needs.NEEDS |= {
        "tofino": lambda: needs.on_path("p4c-barefoot", "bfas"),
        "mininet": _mininet,
        "tshark": lambda: needs.on_path("tshark"),
        "cuda": _cuda,
        "wireguard": _wireguard,
    }
    settings = {
        "SOFTP4_REQUIRE": os.environ.get("WEIR_REQUIRE"),
        "SOFTP4_TESTS": os.environ.get("WEIR_TESTS"),
    }
    os.environ.update({name: value for name, value in settings.items() if value is not None})
