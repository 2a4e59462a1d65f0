# SPDX-License-Identifier: Apache-2.0
"""``weir switch``: a P4 switch in one process."""

import json
import logging
import os
import signal
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

import native
from softswitch.device import Device
from softswitch.errors import ProgramError
from softswitch.p4rt.server import ServerError, Tls
from softswitch.pcap import CaptureError, play
from softswitch.port_spec import OPTIONS, Interface, Pcap, PortSpec, Shm, Tunnel, parse_port
from softswitch.ports import MAX_PORT, PortError
from softswitch.queueing import QueueStatistics

_UNUSED: Final = QueueStatistics(0, 0, 0, 0, 0, 0)

_log = logging.getLogger("softswitch")
_WATCH_INTERVAL: Final = 1.0  # seconds between looks for trouble that the data path counts silently
_PATIENCE: Final = 0.01  # seconds between looks at whether all has left


class LogLevel(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def _parse_port(text: str) -> PortSpec:
    try:
        return parse_port(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parse_tls(cert: Path | None, key: Path | None, ca: Path | None) -> Tls | None:
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None:
        raise typer.BadParameter("TLS needs both --tls-cert and --tls-key")
    return Tls(cert, key, ca)


def _add_ports(device: Device, specs: Sequence[PortSpec], shm: Path | None) -> None:
    if any(isinstance(spec.kind, Shm) for spec in specs):
        if shm is None:
            raise typer.BadParameter("shared-memory ports need --shm DIR")
        device.open_shm(shm)
    for spec in specs:
        match spec.kind:
            case Interface(name, xdp):
                (device.loop.add_xdp if xdp else device.loop.add_interface)(spec.number, name)
            case Tunnel(local, peer):
                device.loop.add_udp(spec.number, local, peer)
            case Pcap(source, sink):
                device.loop.add_queue(spec.number, f"pcap {source or '-'}", sink or Path(os.devnull))
            case Shm():
                assert shm is not None
                device.loop.add_shm(spec.number, shm)
        if spec.queueing is not None:
            device.loop.set_queueing(spec.number, spec.queueing)


class _ReadyFile:
    """A JSON file that is there while the switch serves; written whole, by renaming."""

    def __init__(self, path: Path | None, device: Device) -> None:
        self._path = path
        if path is None:
            return
        ports = {str(number): what for number, what in device.loop.ports().items()}
        content = {"grpc": device.address, "device_id": device.device_id, "pid": os.getpid(), "ports": ports}
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(content) + "\n")
        scratch.replace(path)

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Watch:
    """Says once what the data path counts silently and the user should know."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._told: set[object] = set()

    def look(self) -> None:
        loop = self._device.loop
        for number, what in loop.ports().items():
            if loop.statistics(number).rx_oversize:
                self._tell(
                    number,
                    f"port {number} ({what}): frames too long for the switch were dropped; turn segmentation "
                    "offload off on the sending host (ethtool -K IFACE tso off gso off) and check its MTU",
                )
        if error := loop.capture_error():
            self._tell("capture", f"the capture stopped: {error}")

    def _tell(self, key: object, message: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _log.warning("%s", message)


def _serve(device: Device, specs: Sequence[PortSpec], play_after: float) -> None:
    """Until a signal; or, when every port is a file, until all have been played."""
    stop = threading.Event()
    handlers = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    files = {spec.number: spec.kind for spec in specs if isinstance(spec.kind, Pcap)}
    inputs = {number: file.source for number, file in files.items() if file.source is not None}
    watch = _Watch(device)
    failure: list[Exception] = []

    def play_files() -> None:
        try:
            if not stop.wait(play_after):
                _log.info("played %d frames", play(device.loop, inputs, stop))
            while device.loop.waiting() and not stop.wait(_PATIENCE):
                pass
        except (CaptureError, OSError, PortError) as error:
            failure.append(error)
        if failure or len(files) == len(specs):
            stop.set()

    device.start()
    player = threading.Thread(target=play_files, name="play") if inputs else None
    try:
        if player is not None:
            player.start()
        while not stop.wait(_WATCH_INTERVAL):
            watch.look()
        watch.look()
    finally:
        stop.set()
        if player is not None:
            player.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if failure:
        raise failure[0]


def _log_statistics(device: Device) -> None:
    for number, what in device.loop.ports().items():
        _log.info("port %d (%s): %s", number, what, device.loop.statistics(number))
        for priority, queue in enumerate(device.loop.queue_statistics(number)):
            if queue != _UNUSED:
                _log.info("port %d, queue %d: %s", number, priority, queue)
    if frames := device.loop.unknown_port_drops():
        _log.info("%d frames were sent to ports that are not there", frames)


def switch(
    program: Annotated[
        Path | None,
        typer.Option(
            help="BMv2 JSON to run (p4c-bm2-ss makes it). Without it, the switch waits for a controller to "
            "set its pipeline. A P4Info beside it (NAME.p4info.txtpb) is loaded too.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N=PORT",
            help="A port, repeatable. N=IFACE is a network interface (AF_PACKET), N=xdp:IFACE the same by "
            "AF_XDP, N=shm a shared-memory port "
            "for a process of this machine, N=udp:HOST:PORT:PEERHOST:PEERPORT one end of a tunnel to another "
            "switch, N=pcap:IN,OUT a capture file to play and one to write. Limits may follow: "
            f"{OPTIONS}. N=shm,rate=100mbit is as fast as a line of 100 Mbit/s, both ways.",
            show_default=False,
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve P4Runtime here, for example 127.0.0.1:9559; port 0 picks a free one.",
            show_default=False,
        ),
    ] = None,
    shm: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the shared-memory ports.", show_default=False),
    ] = None,
    p4info: Annotated[
        Path | None, typer.Option(help="P4Info text of --program, if not beside it.", show_default=False)
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
        Path | None, typer.Option(help="Serve gRPC over TLS with this certificate (PEM).", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key.", show_default=False)] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Let in only clients with a certificate of this authority.", show_default=False),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write this JSON file (grpc address, pid, ports) once serving; removed at the end.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="What the program's random numbers start from; else every start differs.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log.")] = LogLevel.info,
) -> None:
    """Run a P4 switch.

    It runs any program that p4c-bm2-ss compiles for v1model, at native speed, and is controlled over
    P4Runtime. Ctrl-C ends it. When every port is a pcap file, it ends by itself once all were played.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    specs = [_parse_port(text) for text in port or ()]
    tls = _parse_tls(tls_cert, tls_key, tls_ca)
    if program is None and grpc is None:
        raise typer.BadParameter("give a --program to run, or --grpc for a controller to set one, or both")
    if tls is not None and grpc is None:
        raise typer.BadParameter("the --tls options need --grpc")
    try:
        with Device(device_id=device_id, cpu_port=cpu_port, seed=seed) as device:
            _add_ports(device, specs, shm)
            if pcap is not None:
                device.loop.capture(pcap)
            if program is not None:
                described = device.load(program, p4info)
                if grpc is not None and not described:
                    _log.warning("no P4Info beside %s: a controller must set the pipeline first", program)
            if grpc is not None:
                typer.echo(f"P4Runtime on {device.serve(grpc, tls)}, device {device_id}")
            ready = _ReadyFile(ready_file, device)
            try:
                _serve(device, specs, play_after)
            finally:
                ready.remove()
                _log_statistics(device)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    except (
        PortError,
        ProgramError,
        ServerError,
        CaptureError,
        native.NoCompilerError,
        native.CompileError,
    ) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    typer.echo(f"weir switch: {message}", err=True)
    raise typer.Exit(1)


app = typer.Typer(add_completion=False)
app.command()(switch)
