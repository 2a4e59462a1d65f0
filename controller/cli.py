# SPDX-License-Identifier: Apache-2.0
"""``weir controller run``, ``weir controller qos`` and ``weir status``."""

import json
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console

from weir.agent_service.client import AgentClient, AgentError
from weir.controller.status import as_plain_data, render
from weir.report.tables import Json, print_json

DEFAULT_ADDRESS = "127.0.0.1:9600"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Program P4 switches and admit workers to jobs, or print settings for switches without P4.",
)

_Topology = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="Topology file, YAML or JSON.")]
_Listen = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="Where agents find the controller: HOST:PORT or unix:/path."),
]
_ReadyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a JSON file (address, pid) once agents can join; removed at the end."
    ),
]
_P4Dir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Compiled P4 programs; default: this installation's own."),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Certificate chain of the controller (PEM); with it, TLS is served."),
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate (PEM).")]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Authority that must have signed the agents' certificates (PEM)."),
]
_JoinTimeout = Annotated[float, typer.Option(min=0.1, help="Seconds a join waits for the other ranks.")]
_Lease = Annotated[float, typer.Option(min=0.5, help="Seconds a member may be silent before it is lost.")]
_SpineTimeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds a spine may be out of reach before leaves send elsewhere.")
]
_StateFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Remember running jobs in this file, so that they survive a restart."),
]
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every change of a switch.")]
_Address = Annotated[
    str,
    typer.Option(
        "--controller",
        metavar="ADDRESS",
        envvar="WEIR_CONTROLLER",
        help="Address of the controller: HOST:PORT or unix:/path.",
    ),
]


@app.command("run")
def controller(
    topology: _Topology,
    *,
    listen: _Listen = DEFAULT_ADDRESS,
    ready_file: _ReadyFile = None,
    p4_dir: _P4Dir = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    join_timeout: _JoinTimeout = 60.0,
    lease: _Lease = 10.0,
    spine_timeout: _SpineTimeout = 2.0,
    state_file: _StateFile = None,
    verbose: _Verbose = False,
) -> None:
    """Program the switches of a topology and let agents join jobs, until interrupted.

    On SIGHUP it reads the topology file again and writes changes of its qos section to the switches at once.
    """
    from weir.controller.daemon import STARTUP_ERRORS, run  # which takes its time to import

    try:
        run(
            topology,
            listen=listen,
            ready_file=ready_file,
            p4_dir=p4_dir,
            tls=(tls_cert, tls_key, tls_ca),
            join_timeout_s=join_timeout,
            lease_s=lease,
            spine_timeout_s=spine_timeout,
            state_file=state_file,
            verbose=verbose,
        )
    except STARTUP_ERRORS as error:
        _fail(str(error))


def status(address: _Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    """Show switches, ports, jobs and counters."""
    try:
        with AgentClient(address) as client, Console(stderr=True).status(f"asking {address}"):
            reply = client.status()
    except AgentError as error:
        _fail(str(error))
    if as_json:
        print_json(as_plain_data(reply))
    else:
        render(reply, Console())


def _fail(message: str) -> NoReturn:
    typer.secho(f"weir: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(1)


@app.command()
def qos(
    interfaces: Annotated[
        list[str],
        typer.Argument(metavar="PORT", help="Ports of the switch: Ethernet0 for SONiC, eth0 for tc."),
    ],
    *,
    form: Annotated[
        Literal["sonic", "tc"],
        typer.Option("--format", help="The switch reads a configuration (sonic) or a script (tc)."),
    ],
    topology_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Topology file with a qos section; default: Weir's own settings."),
    ] = None,
    config_db: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="sonic: the switch's configuration, /etc/sonic/config_db.json there."
        ),
    ] = None,
    rate: Annotated[str, typer.Option(help="tc: rate of the links, in tc's words.")] = "1gbit",
    ecn: Annotated[bool, typer.Option(help="tc: mark protected packets (needs the kernel's red).")] = True,
) -> None:
    """Print settings for a switch without P4: queues, marks and early drops by Weir's classes.

    weir controller qos --format sonic --config-db config_db.json Ethernet0 Ethernet4 > new.json

    weir controller qos --format tc --rate 10gbit eth0 eth1 | sudo sh -e
    """
    from weir.controller.commodity import tc
    from weir.controller.qos import Qos
    from weir.controller.sonic import sonic
    from weir.controller.topology import TopologyError, load_topology

    try:
        classes = Qos() if topology_file is None else load_topology(topology_file).qos
        if form == "tc":
            typer.echo(tc(classes, interfaces, rate, ecn=ecn))
        elif config_db is None:
            raise ValueError("--format sonic needs --config-db: SONiC takes whole configurations alone")
        else:
            typer.echo(json.dumps(sonic(classes, interfaces, json.loads(config_db.read_text())), indent=4))
    except (TopologyError, ValueError, OSError) as error:
        typer.echo(f"weir controller qos: {error}", err=True)
        raise typer.Exit(2) from None
