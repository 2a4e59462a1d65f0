# SPDX-License-Identifier: Apache-2.0
"""Runs `worker` with AddressSanitizer and UndefinedBehaviorSanitizer in all native code, or anything with
ThreadSanitizer.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softp4.native.build import compiler

_FLAGS: Final = "-O0 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-sanitize=alignment"
_OPTIONS: Final = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1000"
_THREAD_FLAGS: Final = "-O1 -g1 -fsanitize=thread"
_TIMEOUT: Final = 600.0  # compiling, too, and other work on the machine


@dataclass(frozen=True)
class Report:
    """Words of a worker; `bad` when a sanitizer, the compiler or Python complained."""

    output: str
    bad: bool


@functools.cache
def runtime() -> Path | None:
    """Return the sanitizer's library, which must be there before Python loads anything; None without one."""
    return _library("libasan.so")


@functools.cache
def thread_sanitizer() -> Path | None:
    """Return ThreadSanitizer's library; None without one."""
    return _library("libtsan.so")


def _library(name: str) -> Path | None:
    command = [*compiler(), f"-print-file-name={name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path = Path(done.stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


def run_worker(
    program: Path, seed: int, frames: int, cache: Path | None = None, *, trace: bool = False
) -> Report:
    """Run one program under sanitizers. `cache` keeps what is compiled, by default the user's. Needs
    `runtime`.
    """
    arguments = [str(program), str(seed), str(frames), str(int(trace))]
    return run_sanitized([sys.executable, "-m", "tests.fuzzing.worker", *arguments], cache)


def run_sanitized(command: Sequence[str], cache: Path | None = None) -> Report:
    """Run Python with sanitizers in all native code. `cache` keeps what is compiled, by default the user's.
    Needs `runtime`.
    """
    settings = {
        "LD_PRELOAD": str(runtime()),
        "ASAN_OPTIONS": _OPTIONS,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # blocks of Python's own are as closely watched
        "SOFTP4_CFLAGS": _FLAGS,
    }
    return _run(command, cache, settings)


def run_thread_sanitized(command: Sequence[str]) -> Report:
    """Run Python with ThreadSanitizer in all native code. Needs `thread_sanitizer`."""
    settings = {
        "LD_PRELOAD": str(thread_sanitizer()),
        "TSAN_OPTIONS": "exitcode=66",
        "SOFTP4_CFLAGS": _THREAD_FLAGS,
    }
    return _run(command, None, settings)


def _run(command: Sequence[str], cache: Path | None, settings: Mapping[str, str]) -> Report:
    environment = {**os.environ, **settings, **({"SOFTP4_CACHE": str(cache)} if cache else {})}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return Report(f"more than {_TIMEOUT} s", True)
    return Report(_shortened(done.stdout + done.stderr), done.returncode != 0)


def _shortened(output: str) -> str:
    """Shorten output: a sanitizer says what it found first, then where, then what it is in short."""
    return output if len(output) < 8000 else f"{output[:5000]}\n...\n{output[-3000:]}"
