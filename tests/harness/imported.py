# SPDX-License-Identifier: Apache-2.0
"""A process that has imported what tests start; commands and templates are forked from it.

See ``tests.harness.base``.
"""

import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import numpy.ma  # noqa: F401
import pytest  # noqa: F401 - modules of tests import it: a sixth of a second in every process
import sklearn.datasets  # noqa: F401 - which workers load their samples by
import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it, which takes seconds

import weir.bench.rank
import weir.cli
import weir.cluster
import weir.host_agent.torch.parameter_server.serve
import weir.torch
import weir.train.placed_machine
import weir.train.worker  # noqa: F401
from tests.harness.base import MODULES, TEMPLATE, receive_control, start_alone
from weir.process import template
from weir.process.child import Child

_MESSAGE: Final = 65536


class _Forked(subprocess.Popen[bytes]):
    """A child of this process that was forked."""

    def __init__(self, pid: int) -> None:
        self._forked = pid
        super().__init__([])

    def _execute_child(self, *_arguments: object, **_options: object) -> None:
        self.pid = self._forked
        self._child_created = True


class _Spare:
    """A process forked while this one has one thread; it becomes the first template of ``MODULES``."""

    def __init__(self) -> None:
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        (self._theirs if self.pid else self._control).close()
        self._free = True

    def start(self, module: str, control: socket.socket, log: Path, environment: Mapping[str, str]) -> Child:
        """Start a template's process (``weir.process.template.start``)."""
        if module not in MODULES or not self._free:
            return start_alone(module, control, log, environment)
        self._free = False
        added = "\0".join([module, *(f"{name}={value}" for name, value in environment.items())])
        with log.open("ab") as out:
            socket.send_fds(self._control, [added.encode()], [control.fileno(), out.fileno()])
        return _Forked(self.pid)

    def serve(self) -> None:
        """Be the template, in the spare process, unless none is asked for."""
        with self._theirs:
            message, files, _, _ = socket.recv_fds(self._theirs, _MESSAGE, 2)
        if not message:
            os._exit(0)
        control, out = files
        os.setsid()
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        module, *added = message.decode().split("\0")
        os.environ.update(each.split("=", 1) for each in added)
        template.serve(module, socket.socket(fileno=control))


def main() -> None:
    """Run the command that ``tests.harness.commands.Command`` was given, or be a template."""
    words = sys.argv[1:]
    if words[0] == TEMPLATE:
        Path("/proc/self/comm").write_text("python")
        template.serve(words[1], receive_control(words[2]))
        return
    # A test run that a shell put in the background ignores SIGINT, and passes that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spare = _Spare()
    if spare.pid == 0:
        spare.serve()
        return
    template.start = spare.start
    sys.argv = words
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")
