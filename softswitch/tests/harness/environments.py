# SPDX-License-Identifier: Apache-2.0
"""Python packages that cannot share an environment with the tests' own: made once, and cached."""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from softp4.native.build import cache_dir, compiler

_OPTIONS = ("--quiet", "--disable-pip-version-check", "--retries", "0", "--timeout", "15")


def environment(*requirements: str) -> Path:
    """Return the Python of a virtual environment with these packages. Skips the test if there is no index."""
    folder = _folder("venv", requirements)
    python = folder / "bin" / "python"
    with (folder.parent / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            _install(folder, [str(python), "-m", "pip", "install", *_OPTIONS, *requirements], requirements)
    return python


def libraries(*requirements: str) -> Path:
    """Return a folder with these packages and nothing else, which PYTHONPATH puts before the tests' own."""
    folder = _folder("lib", requirements)
    with (folder.parent / "venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                *_OPTIONS,
                "--no-deps",
                "--target",
                str(folder),
            ]
            _install(folder, [*command, *requirements], requirements)
    return folder


def for_another_python() -> dict[str, str]:
    """Return environment variables for another Python, whose switch compiles as this one's does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "CC": shlex.join(compiler())}  # which may be a package of this environment


def _folder(kind: str, requirements: Sequence[str]) -> Path:
    cache_dir().mkdir(parents=True, exist_ok=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    name = "-".join([kind, *(each.replace("==", "-") for each in requirements), version])
    return cache_dir() / name


def _install(folder: Path, command: Sequence[str], requirements: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"{' '.join(requirements)} cannot be installed here: {last}")
    (folder / "complete").touch()
