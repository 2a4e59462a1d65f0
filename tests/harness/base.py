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
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.harness.source import source_path
from weir.process import template
from weir.process.child import Child
from weir.process.template import Template

MODULES: Final = (
    "weir.bench.rank",
    "weir.train.placed_machine",
    "weir.train.worker",
)
TEMPLATE: Final = "--template"  # before a module, and the address of the template's socket

start_alone: Final = template.start
_TIMEOUT_S: Final = 60.0  # then a process of the base has not begun
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
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # the system chooses an address that is no file
        listener.listen()
        listener.settimeout(_TIMEOUT_S)
        address = listener.getsockname()[1:].decode()
        child = base().fork([TEMPLATE, module, address], log=log, environment=environment)
        with listener.accept()[0] as there:
            socket.send_fds(there, [b"control"], [control.fileno()])
    return child


def receive_control(address: str) -> socket.socket:
    """Return the control socket that ``start`` sends to the process that it forks."""
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(f"\0{address}")
        return socket.socket(fileno=socket.recv_fds(there, 100, 1)[1][0])


@functools.cache
def _base() -> Template:
    folder = tempfile.TemporaryDirectory(prefix="base-")
    environment = {"PYTHONPATH": source_path()}
    made = Template("tests.harness.imported", environment, Path(folder.name) / "log")
    atexit.register(folder.cleanup)
    atexit.register(made.close)
    return made
