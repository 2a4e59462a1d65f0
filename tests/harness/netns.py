# SPDX-License-Identifier: Apache-2.0
"""Network namespaces for tests: commands, and calls from inside one. Needs root."""

import subprocess
import threading
from collections.abc import Callable
from ctypes import CDLL, get_errno
from pathlib import Path
from typing import Final, TypeVar

_CLONE_NEWNET: Final = 0x40000000
_T = TypeVar("_T")


def run(*command: str) -> None:
    """Run a command. Raises RuntimeError with its words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def inside(namespace: str, call: Callable[[], _T]) -> _T:
    """Return what ``call`` returns when run by a thread inside a network namespace."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with Path("/run/netns", namespace).open("rb") as handle:
                if CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
                    raise OSError(get_errno(), f"cannot enter network namespace {namespace}")
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
