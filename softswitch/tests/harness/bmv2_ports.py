# SPDX-License-Identifier: Apache-2.0
"""BMv2 without a program, in a network namespace with ports that scripts can send through. Needs root."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.harness.netns import Namespace
from tests.harness.ports import free_port

_TIMEOUT: Final = 30.0  # seconds until a switch that does not start counts as broken


class Bmv2WithPorts:
    """A running `simple_switch_grpc`, device 1.

    Attributes:
        address: where it serves P4Runtime; the socket is reached from any namespace.
        hosts: the interfaces that lead to ports 1, 2, ...
        inside: what to put before a command, to run it where those interfaces are.
    """

    def __init__(self, ports: int) -> None:
        self._cleanup = contextlib.ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="softp4-bmv2-"))
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        self.address = f"unix:{folder}/grpc"
        self.hosts = [f"host{number}" for number in range(1, ports + 1)]
        try:
            namespace = self._cleanup.enter_context(Namespace())
            self.inside = namespace.prefix
            for number, host in enumerate(self.hosts, start=1):
                namespace.add_veth(f"sw{number}", host)
            self._start(folder)
        except BaseException:
            self._cleanup.close()
            raise

    def _start(self, folder: Path) -> None:
        ports = [word for number in range(1, len(self.hosts) + 1) for word in ("-i", f"{number}@sw{number}")]
        options = ["--no-p4", "--device-id", "1", "--thrift-port", str(free_port()), *ports]
        target = ["--grpc-server-addr", self.address, "--cpu-port", "510"]
        process = subprocess.Popen(
            [*self.inside, "simple_switch_grpc", *options, "--", *target],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        self._cleanup.callback(process.wait)
        self._cleanup.callback(process.kill)
        deadline = time.monotonic() + _TIMEOUT
        while not (folder / "grpc").exists():
            assert process.poll() is None, "simple_switch_grpc ended"
            assert time.monotonic() < deadline, "simple_switch_grpc does not serve"
            time.sleep(0.05)

    def __enter__(self) -> "Bmv2WithPorts":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()
