# SPDX-License-Identifier: Apache-2.0
"""Real switches for controllers to program: the soft switch, and BMv2 where it is installed."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.harness.ports import free_port

TIMEOUT_S = 60.0  # until a switch that does not start counts as broken


class SwitchProcess:
    """A switch without ports, in a process of its own; ``address`` is where it serves P4Runtime."""

    def __init__(self, kind: str, folder: Path, options: Sequence[str] = ()) -> None:
        self.kind = kind
        self._options = options
        self._folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.thrift = f"127.0.0.1:{free_port()}"  # BMv2's own management service
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, empty, at the same address as ever; returns when it serves."""
        ready = self._folder / "ready.json"
        if self.kind == "soft":
            command = [
                sys.executable,
                "-m",
                "softp4",
                "run",
                "--grpc",
                self.address,
                "--ready-file",
                str(ready),
            ]
            command += self._options
        else:
            options = ["--no-p4", "--device-id", "1", "--thrift-port", self.thrift.rpartition(":")[2]]
            command = ["simple_switch_grpc", *options, "--", "--grpc-server-addr", self.address]
        log = self._folder / "log"
        with log.open("ab") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink)
        until = time.monotonic() + TIMEOUT_S
        while not self._is_up(ready):
            assert self._process.poll() is None, f"{self.kind} ended:\n{log.read_text()}"
            assert time.monotonic() < until, f"{self.kind} does not start:\n{log.read_text()}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Kill it, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        (self._folder / "ready.json").unlink(missing_ok=True)

    def _is_up(self, ready: Path) -> bool:
        if self.kind == "soft":
            return _serves(self.address) and _complete(ready)
        return _serves(self.address) and _serves(self.thrift)  # one begins after the other


def _serves(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _complete(ready: Path) -> bool:
    return ready.exists() and "grpc" in json.loads(ready.read_text())
