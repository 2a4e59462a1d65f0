# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime switch for Mininet: the soft switch, or BMv2's simple_switch_grpc, with any program.

    from functools import partial
    from mininet.net import Mininet
    from mininet.topo import SingleSwitchTopo
    from p4switch import P4Switch

    switch = partial(P4Switch, program="examples/router/router.json", cpu_port=255)
    net = Mininet(topo=SingleSwitchTopo(2), switch=switch, controller=None, waitConnected=True)
    net.start()
    print(net["s1"].grpc)  # where a controller finds it
    net.stop()

Or for one switch of a topology's `build`:
`self.addSwitch("s1", cls=P4Switch, program="examples/router/router.json", grpc_port=50051)`.

This file runs under the system's Python, where Debian's and Ubuntu's `mininet` package lives, and so imports
nothing of Weir: switches are processes, as they are in production.
"""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from mininet.node import Node, Switch

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "softswitch" / "softp4" / "native"))
from scratch import scratch_folder  # noqa: E402 of the standard library alone


class P4Switch(Switch):
    """A switch process on a Mininet node's interfaces.

    Args:
        program: BMv2 JSON to start with; without it, a controller sets one.
        p4info: its P4Info, if not beside it as NAME.p4info.txtpb.
        kind: "soft", or "bmv2" for simple_switch_grpc on PATH.
        grpc_port: serve P4Runtime on this TCP port of the node's loopback; without it, on a Unix socket,
            which works across namespaces.
        cpu_port: the port that leads to the controller.
        device_id: the P4Runtime id; by default switches are numbered from 1.
        port_options: what follows every port on the soft switch's command line, e.g. ",rate=100mbit".
        folder: where sockets and logs are; by default a temporary one that is removed at the end.

    Attributes:
        grpc: where P4Runtime is served.
        log: the switch's log file.
    """

    started = 0
    _scratch = None

    def __init__(
        self,
        name: str,
        *,
        program: Path | str | None = None,
        p4info: Path | str | None = None,
        kind: str = "soft",
        grpc_port: int | None = None,
        cpu_port: int = 510,
        device_id: int | None = None,
        port_options: str = "",
        folder: Path | str | None = None,
        pcap: Path | str | None = None,
        **params: object,
    ) -> None:
        super().__init__(name, **params)
        if kind not in ("soft", "bmv2"):
            raise ValueError(f"{name}: kind is {kind!r}; expected 'soft' or 'bmv2'")
        P4Switch.started += 1
        self.kind, self.program, self.p4info = kind, program, p4info
        self.cpu_port, self.port_options = cpu_port, port_options
        self.device_id = P4Switch.started if device_id is None else device_id
        self.folder = Path(folder or P4Switch.scratch())
        self.pcap = Path(pcap) if pcap else None  # where captures of all ports go, in files of its name
        self.grpc = f"127.0.0.1:{grpc_port}" if grpc_port else f"unix:{self.folder}/{name}.sock"
        self.log = self.folder / f"{name}.log"
        self.process = None

    def start(self, controllers: list) -> None:
        self.cmd("ip", "link", "set", "lo", "up")
        ports = {port: str(intf) for port, intf in self.intfs.items() if str(intf) != "lo"}
        for interface in ports.values():
            offloads_off(self, interface)
        self.process = spawn(self, self._soft(ports) if self.kind == "soft" else self._bmv2(ports), self.log)

    def _soft(self, ports: dict[int, str]) -> list[str]:
        command = [weir(), "switch", "--grpc", self.grpc, "--device-id", str(self.device_id)]
        command += ["--cpu-port", str(self.cpu_port), "--ready-file", str(self._ready)]
        for option, path in (("--program", self.program), ("--p4info", self.p4info)):
            command += [option, str(path)] if path else []
        command += ["--pcap", str(self.pcap / f"{self.name}.pcapng")] if self.pcap else []
        return command + [
            w for n, name in ports.items() for w in ("--port", f"{n}={name}{self.port_options}")
        ]

    def _bmv2(self, ports: dict[int, str]) -> list[str]:
        command = ["simple_switch_grpc", "--device-id", str(self.device_id)]
        command += [str(self.program)] if self.program else ["--no-p4"]
        command += [word for port, name in ports.items() for word in ("-i", f"{port}@{name}")]
        command += [f"--pcap={self.pcap}"] if self.pcap else []  # two files for each interface
        target = ["--grpc-server-addr", self.grpc, "--cpu-port", str(self.cpu_port), "--priority-queues", "8"]
        return [*command, "--", *target]

    def connected(self) -> bool:
        """Return whether it serves P4Runtime, for Mininet's waitConnected. Raises RuntimeError if it has
        ended.
        """
        if self.process is None:
            return False
        if self.process.poll() is not None:
            words = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.name} ended with status {self.process.returncode}: {words}")
        return self._ready.exists() if self.kind == "soft" else self._listens()

    def _listens(self) -> bool:
        if not self.grpc.startswith("unix:"):
            return bool(self.cmd("ss", "-Hltn", "sport", "=", self.grpc.rpartition(":")[2]).strip())
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.grpc.removeprefix("unix:")) == 0

    @property
    def _ready(self) -> Path:
        return self.folder / f"{self.name}.ready"

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 Mininet's name
        if self.process is not None:
            end(self.process)
        super().stop(deleteIntfs)

    @classmethod
    def scratch(cls) -> str:
        """Return a folder of this process, removed when it ends."""
        if cls._scratch is None:
            ended = contextlib.ExitStack()
            cls._scratch = str(ended.enter_context(scratch_folder("weir-mininet")))
            atexit.register(ended.close)
        return cls._scratch


def weir() -> str:
    """Return the `weir` command: this checkout's, or the one on PATH."""
    own = ROOT / ".venv" / "bin" / "weir"
    found = str(own) if own.exists() else shutil.which("weir")
    if not found:
        raise SystemExit(
            "no `weir` command: run `make .venv/ready` in the checkout, or pip install ./softswitch ."
        )
    return found


def python() -> str:
    """Return the Python that the `weir` command runs under."""
    return str(Path(weir()).with_name("python"))


def offloads_off(node: Node, interface: str) -> None:
    """Make the kernel fill in checksums and cut segments to wire size, as a switch in user space needs
    them.
    """
    node.cmd(sys.executable, str(ROOT / "weir" / "netns" / "offloads.py"), interface)


def spawn(node: Node, command: list[str], log: Path, **extra: str) -> subprocess.Popen:
    """Start a process on a node; what it says goes to the log."""
    with log.open("ab") as out:
        return node.popen(tied(command), stdout=out, stderr=out, env={**os.environ, **extra})


def tied(command: list[str]) -> list[str]:
    """Return a command that becomes this one and is killed when this program ends, also when it is killed."""
    return [
        sys.executable,
        "-IS",
        str(ROOT / "weir/process/become.py"),
        "--parent",
        str(os.getpid()),
        "--",
        *command,
    ]


def end(process: subprocess.Popen) -> None:
    """Ask it to end; insist after 10 s."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
