# SPDX-License-Identifier: Apache-2.0
"""``weir shell``: p4runtime-shell on a switch of a topology, or on any other.

p4runtime-shell runs in a process of its own, and where its protobuf (older than 3.21) is not wanted, in an
environment of its own. It takes the P4Info from the switch.
"""

import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from weir.extras import MissingExtraError, require
from weir.softswitch.device import find_p4info

SHELL: Final = "p4runtime-shell==0.0.6"
_OBSERVER: Final = "0,1"  # the smallest election id there is: every controller may have the switch
_WRITER: Final = f"{(1 << 64) - 1},0"  # larger than any controller's

_Switch = Annotated[str | None, typer.Argument(help="A switch of the topology.")]
_Topology = Annotated[Path | None, typer.Option(help="Topology file, YAML or JSON.")]
_Grpc = Annotated[str | None, typer.Option(help="Where any switch serves P4Runtime, instead of a topology.")]
_DeviceId = Annotated[int, typer.Option(help="With --grpc: the switch's device id.")]
_Push = Annotated[
    Path | None, typer.Option(help="Give the switch this program first (BMv2 JSON, its P4Info beside it).")
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
    topology: _Topology = None,
    grpc: _Grpc = None,
    device_id: _DeviceId = 1,
    push: _Push = None,
    write: _Write = False,
    python: _Python = sys.executable,
) -> None:
    """Open p4runtime-shell on a switch, with the P4Info of the program that it runs.

    Nothing is pushed unless asked for, and whoever else controls the switch goes on: the shell reads. It may
    write where nobody else does, or with --write.
    """
    arguments = _address(grpc, device_id) if topology is None else _of_topology(topology, switch)
    arguments += ["--election-id", _WRITER if write else _OBSERVER]
    if push is not None:
        p4info = find_p4info(push)
        if p4info is None:
            _fail(f"there is no P4Info beside {push}")
        arguments += ["--config", f"{p4info},{push}"]
    command = ["-m", "p4runtime_sh", *arguments]
    if python == sys.executable and importlib.util.find_spec("p4runtime_sh") is None:
        _fail(_advice(command))
    sys.stdout.flush()
    try:
        os.execv(python, [python, *command])
    except OSError as error:
        _fail(f"cannot run {python}: {error.strerror}")


def _advice(command: list[str]) -> str:
    return (
        f"weir shell needs {SHELL}, which needs protobuf 3.20: give it an environment of its own,\n"
        f"    python3 -m venv ~/.p4runtime-shell && ~/.p4runtime-shell/bin/pip install {SHELL}\n"
        "and add --python ~/.p4runtime-shell/bin/python to this command; or run\n"
        f"    ~/.p4runtime-shell/bin/python {shlex.join(command)}"
    )


def _address(grpc: str | None, device_id: int) -> list[str]:
    if grpc is None:
        _fail("say which switch: SWITCH --topology FILE, or --grpc ADDRESS")
    return ["--grpc-addr", grpc, "--device-id", str(device_id)]


def _of_topology(path: Path, name: str | None) -> list[str]:
    try:
        require("a topology file", "controller")
        from weir.controller.topology import TopologyError, load_topology

        topology = load_topology(path)
    except (MissingExtraError, TopologyError) as error:
        _fail(str(error))
    switches = {each.name: each for each in topology.switches}
    if name not in switches:
        _fail(f"{path} has no switch {name!r}, but {', '.join(switches)}")
    switch = switches[name]
    arguments = _address(switch.grpc, switch.device_id)
    if switch.tls is not None:
        arguments += ["--ssl", "--cacert", str(switch.tls.ca)]
        if switch.tls.cert is not None:
            arguments += ["--cert", str(switch.tls.cert), "--private-key", str(switch.tls.key)]
    return arguments


def _fail(problem: str) -> NoReturn:
    typer.echo(f"weir: {problem}", err=True)
    raise typer.Exit(1)
