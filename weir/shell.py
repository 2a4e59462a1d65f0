# SPDX-License-Identifier: Apache-2.0
"""``weir shell``: p4runtime-shell on a switch of a topology, or on any other.

p4runtime-shell runs in a process of its own, and where its protobuf (older than 3.21) is not wanted, in an
environment of its own. It takes the P4Info from the switch.
"""

import importlib.util
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from softp4.channels import without_proxy
from softp4.device import find_p4info
from softp4.p4runtime.session import Session, SessionError
from weir.agent_service.tls import TlsError, TlsFiles

SHELL: Final = "p4runtime-shell==0.0.6"
_OBSERVER: Final = 1  # the smallest election id there is: every controller may have the switch

_Switch = Annotated[str | None, typer.Argument(metavar="SWITCH", help="A switch of the topology.")]
_Topology = Annotated[Path | None, typer.Option(metavar="FILE", help="Topology file, YAML or JSON.")]
_Grpc = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address of a switch's P4Runtime service, instead of a topology."),
]
_DeviceId = Annotated[int, typer.Option(help="Device id of the switch, with --grpc.")]
_Program = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Install this program first (BMv2 JSON, with its P4Info beside it)."),
]
_Write = Annotated[
    bool, typer.Option("--write", help="Take the switch over from its controller until the shell ends.")
]
_Python = Annotated[
    str, typer.Option(envvar="WEIR_SHELL_PYTHON", help="Python of an environment that has p4runtime-shell.")
]


def shell(
    *,
    switch: _Switch = None,
    topology_file: _Topology = None,
    grpc: _Grpc = None,
    device_id: _DeviceId = 1,
    program: _Program = None,
    write: _Write = False,
    python: _Python = sys.executable,
) -> None:
    """Open p4runtime-shell on a switch, with the P4Info of the program that it runs.

    By default the shell installs no program, and the switch keeps its controller; the shell only reads. It
    can write if the switch has no other controller, or with --write.
    """
    if topology_file is not None:
        target = _of_topology(topology_file, switch)
    elif grpc is not None:
        target = _Target(grpc, device_id)
    else:
        _fail("say which switch: SWITCH --topology-file FILE, or --grpc ADDRESS")
    election = _larger_than_its_controllers(target) if write else _OBSERVER
    arguments = [*target.arguments(), "--election-id", f"{election >> 64},{election & ((1 << 64) - 1)}"]
    if program is not None:
        p4info = find_p4info(program)
        if p4info is None:
            _fail(f"there is no P4Info beside {program}")
        arguments += ["--config", f"{p4info},{program}"]
    command = ["-m", "p4runtime_sh", *arguments]
    if python == sys.executable and importlib.util.find_spec("p4runtime_sh") is None:
        _fail(_advice(command))
    sys.stdout.flush()
    try:
        os.execve(python, [python, *command], without_proxy(dict(os.environ)))
    except OSError as error:
        _fail(f"cannot run {python}: {error.strerror}")


def _advice(command: list[str]) -> str:
    return (
        f"weir shell needs {SHELL}, which needs protobuf 3.20: give it an environment of its own,\n"
        f"    python3 -m venv ~/.p4runtime-shell && ~/.p4runtime-shell/bin/pip install {SHELL}\n"
        "and add --python ~/.p4runtime-shell/bin/python to this command; or run\n"
        f"    ~/.p4runtime-shell/bin/python {shlex.join(command)}"
    )


@dataclass(frozen=True)
class _Target:
    """A switch, as p4runtime-shell is told of it."""

    grpc: str
    device_id: int
    tls: TlsFiles | None = None

    def arguments(self) -> list[str]:
        """Return p4runtime-shell's options."""
        found = ["--grpc-addr", self.grpc, "--device-id", str(self.device_id)]
        if self.tls is not None:
            found.append("--ssl")
            names = ("--cacert", "--cert", "--private-key")
            for name, path in zip(names, (self.tls.ca, self.tls.cert, self.tls.key), strict=True):
                found += [name, str(path)] if path else []
        return found


def _of_topology(path: Path, name: str | None) -> _Target:
    try:
        from weir.controller.topology import TopologyError, load_topology, with_files

        topology = with_files(load_topology(path), path)
    except TopologyError as error:
        _fail(str(error))
    switches = {each.name: each for each in topology.switches}
    if name not in switches:
        _fail(f"{path} has no switch {name!r}, but {', '.join(switches)}")
    switch = switches[name]
    tls = None if switch.tls is None else TlsFiles(switch.tls.cert, switch.tls.key, switch.tls.ca)
    return _Target(switch.grpc, switch.device_id, tls)


def _larger_than_its_controllers(target: _Target) -> int:
    """Return an election id with which the switch is taken over, whichever controller has it or had it
    last."""
    try:
        credentials = None if target.tls is None else target.tls.channel_credentials()
        with Session(target.grpc, device_id=target.device_id, credentials=credentials) as session:
            return session.highest + 1
    except (SessionError, TlsError) as error:
        _fail(f"{target.grpc} cannot be reached: {error}")


def _fail(problem: str) -> NoReturn:
    typer.echo(f"weir: {problem}", err=True)
    raise typer.Exit(1)
