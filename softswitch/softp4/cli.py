# SPDX-License-Identifier: Apache-2.0
"""``softp4 run``: a P4 switch in one process, with every kind of port."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softp4.control.cli import app as control_app
from softp4.dataplane.port_spec import OPTIONS, PortSpec, Shm, parse_port
from softp4.dataplane.ports import MAX_PORT
from softp4.runtime.bindings import MOST_THREADS

if TYPE_CHECKING:
    from softp4.p4rt.server import Tls

_log = logging.getLogger("softp4")


class LogLevel(StrEnum):
    """Amount that is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def _parse_port(text: str) -> PortSpec:
    try:
        return parse_port(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parse_tls(cert: Path | None, key: Path | None, ca: Path | None) -> "Tls | None":
    from softp4.p4rt.server import Tls

    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None:
        raise typer.BadParameter("TLS needs both --tls-cert and --tls-key")
    return Tls(cert, key, ca)


def switch(
    context: typer.Context,
    program: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="BMv2 JSON to run (p4c-bm2-ss makes it). Without it, the switch waits for a controller to "
            "set its pipeline. A P4Info beside it (NAME.p4info.txtpb) is loaded too.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N=PORT",
            help="A port, repeatable. N=IFACE is a network interface (AF_PACKET), N=shm a shared-memory port "
            "for a process of this machine, N=udp:HOST:PORT:PEERHOST:PEERPORT one end of a tunnel to another "
            "switch, N=claim:HOST:PORT:SECRETFILE one end of a tunnel to anyone who proves that it has the "
            "port's key, N=pcap:IN,OUT a capture file to play and one to write. Limits may follow: "
            f"{OPTIONS}. N=shm,rate=100mbit is as fast as a line of 100 Mbit/s, both ways.",
            show_default=False,
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the P4Runtime service: unix:/path, for users who may write to that socket, or "
            "HOST:PORT (port 0 picks a free one). Without --tls-ca, everyone who reaches the address "
            "controls the switch.",
            show_default=False,
        ),
    ] = None,
    shm: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the shared-memory ports.", show_default=False),
    ] = None,
    p4info: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="P4Info text of --program, if not beside it.", show_default=False),
    ] = None,
    device_id: Annotated[int, typer.Option(min=1, help="P4Runtime device id.")] = 1,
    cpu_port: Annotated[
        int, typer.Option(min=0, max=MAX_PORT, help="Port that leads to the controller.")
    ] = 510,
    pcap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Capture every frame of every port, as pcapng.", show_default=False
        ),
    ] = None,
    play_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Wait before playing pcap ports, for a controller to fill tables."
        ),
    ] = 0.0,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Serve gRPC over TLS with this certificate (PEM).", show_default=False
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key.", show_default=False)
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Let in only clients with a certificate of this authority.",
            show_default=False,
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write this JSON file (grpc address, pid, ports) once serving; removed at the end.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Print every frame's path: parser, tables, actions, queues."),
    ] = False,
    trace_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Print --trace to this file, not to stderr.", show_default=False),
    ] = None,
    trace_port: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", min=0, max=MAX_PORT, help="Trace only frames that arrive on this port; repeatable."
        ),
    ] = None,
    trace_frames: Annotated[
        int | None,
        typer.Option(metavar="COUNT", min=1, help="Number of frames to trace.", show_default=False),
    ] = None,
    trace_full: Annotated[
        bool, typer.Option("--trace-full", help="Trace every statement of actions, however long they are.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seed of the program's random numbers. Default: a new seed at every start.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_THREADS,
            help="Threads that run frames, if program and entries allow it; `softp4 ctl info` says how "
            "they share frames, or why they cannot.",
        ),
    ] = 1,
    control: Annotated[
        Path | None,
        typer.Option(
            metavar="SOCKET",
            help="Where `softp4 ctl` reaches this switch; by default in a directory of the user's own.",
            show_default=False,
        ),
    ] = None,
    no_control: Annotated[bool, typer.Option("--no-control", help="No control socket.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = LogLevel.info,
) -> None:
    """Run a P4 switch.

    It runs any program that p4c-bm2-ss compiles for v1model, at native speed, and is controlled over
    P4Runtime. Ctrl-C ends it. If every port is a pcap file, it ends when it has played all of them.
    """
    if context.invoked_subcommand is not None:
        return
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from softp4.serving import CaptureFile, Settings, StartError, run
    from softp4.tracing.tracer import Tracing

    specs = [_parse_port(text) for text in port or ()]
    tls = _parse_tls(tls_cert, tls_key, tls_ca)
    if program is None and grpc is None:
        raise typer.BadParameter("give a --program to run, or --grpc for a controller to set one, or both")
    if tls is not None and grpc is None:
        raise typer.BadParameter("the --tls options need --grpc")
    if shm is None and any(isinstance(spec.kind, Shm) for spec in specs):
        raise typer.BadParameter("shared-memory ports need --shm DIR")
    settings = Settings(
        program=program,
        p4info=p4info,
        ports=specs,
        shm=shm,
        grpc=grpc,
        tls=tls,
        device_id=device_id,
        cpu_port=cpu_port,
        captures=() if pcap is None else (CaptureFile(pcap),),
        play_after=play_after,
        ready_file=ready_file,
        seed=seed,
        threads=threads,
        control=_control_socket(control, no_control),
        trace=Tracing(trace_file, tuple(trace_port) if trace_port else None, trace_frames, trace_full)
        if trace or trace_file is not None
        else None,
    )
    try:
        run(settings, typer.echo)
    except StartError as error:
        typer.echo(f"{context.command_path}: {error}", err=True)
        raise typer.Exit(1) from None


def _control_socket(chosen: Path | None, off: bool) -> Path | None:
    if off or chosen is not None:
        return chosen
    from softp4.control.address import ControlAddressError, own_socket

    try:
        return own_socket()
    except ControlAddressError as error:  # nobody asked for it by name
        _log.warning("%s: softp4 ctl cannot reach this switch", error)
        return None


app = typer.Typer(add_completion=False)
app.callback(invoke_without_command=True)(switch)
app.add_typer(control_app, name="ctl")
