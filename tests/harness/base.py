# SPDX-License-Identifier: Apache-2.0
"""A process that imports torch and Weir once for all that tests start (``tests.harness.imported``).

Commands (``tests.harness.commands``) are forked from it, and so are the templates (``weir.process.template``)
of ``MODULES``: each would import torch, and most of them what DistributedDataParallel does. Switches and
controllers are not: a process that has imported torch takes long to end.
"""

import atexit
import functools
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.harness.source import source_path
from weir.process import template
from weir.process.child import Child
from weir.process.template import Forked, Template

MODULES: Final = (
    "weir.bench.rank",
    "weir.train.placed_machine",
    "weir.train.worker",
)
TEMPLATE: Final = "--template"  # before a module, and the address of the template's socket
FORKSERVER: Final = "--forkserver"  # before the address of its files

start_alone: Final = template.start
_lock: Final = threading.Lock()


def base() -> Template:
    """Return this process's base, started unless it runs."""
    with _lock:
        made = _base()
        if not made.runs:
            _base.cache_clear()
            made = _base()
        return made


def fork_templates() -> None:
    """Fork this process's templates of ``MODULES`` from its base."""
    template.start = start


def start(module: str, control: socket.socket, log: Path, environment: Mapping[str, str]) -> Child:
    """Start a template's process (``weir.process.template.start``)."""
    if module not in MODULES:
        return start_alone(module, control, log, environment)
    return fork_with_files([TEMPLATE, module], [control.fileno()], log, environment)


def fork_with_files(
    words: Sequence[str], files: Sequence[int], log: Path, environment: Mapping[str, str]
) -> Forked:
    """Fork a child of the base that takes these files by ``receive``; its last word is their address."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # the system chooses an address that is no file
        listener.listen()
        address = listener.getsockname()[1:].decode()
        child = base().fork([*words, address], log=log, environment=environment)
        with listener.accept()[0] as there:
            socket.send_fds(there, [b"files"], files)
    return child


def receive(address: str) -> list[int]:
    """Return the files that ``fork_with_files`` sends to this process."""
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(f"\0{address}")
        return socket.recv_fds(there, 100, 10)[1]


@functools.cache
def _base() -> Template:
    folder = tempfile.TemporaryDirectory(prefix="base-")
    environment = {"PYTHONPATH": source_path()}
    made = Template("tests.harness.imported", environment, Path(folder.name) / "log")
    atexit.register(folder.cleanup)
    atexit.register(made.close)
    return made
