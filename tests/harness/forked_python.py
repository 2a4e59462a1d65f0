# SPDX-License-Identifier: Apache-2.0
"""``python WORDS``, forked from a process that has torch imported; it ends as an interpreter does.

Ranks of ``run_ranks`` leave without what a program's end does: threads that are waited for, ``atexit``.
"""

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
import torch._dynamo  # DistributedDataParallel imports it

import weir.torch
from weir.process.template import Forked, shared_template

TIMEOUT_S: Final = 120.0
IMPORTED: Final = (torch, weir.torch)


def start_python(*words: object, environment: Mapping[str, str], log: Path) -> Forked:
    """Start ``python WORDS``, a script or ``-m`` and a module, and arguments.

    Args:
        environment: added to this process's.
        log: receives all that it prints. Its name is the process's.
    """
    template = shared_template(__name__, {}, log)
    return template.fork([str(word) for word in words], log=log, environment=environment)


def run_together(commands: Sequence[Sequence[object]], folder: Path, **variables: str) -> list[str]:
    """Run commands at once, as ranks from -1 on; return what each prints.

    Raises:
        AssertionError: one fails.
    """
    logs = [folder / f"python{number}" for number in range(len(commands))]
    started = [
        start_python(*command, environment={**variables, "RANK": str(rank)}, log=log)
        for rank, (command, log) in enumerate(zip(commands, logs, strict=True), start=-1)
    ]
    statuses = [each.wait(TIMEOUT_S) for each in started]
    said = [log.read_text() for log in logs]
    assert not any(statuses), (statuses, said)
    return said


def main() -> None:
    """Be the interpreter."""
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
