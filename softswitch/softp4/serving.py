# SPDX-License-Identifier: Apache-2.0
"""A switch process from its settings to its end: what every command line of it comes down to."""

import gc
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softp4 import native
from softp4.control.address import ControlAddressError
from softp4.control.operations import Operations
from softp4.control.server import ControlServer
from softp4.dataplane.pcap import CaptureError, play
from softp4.dataplane.port_spec import Pcap, PortSpec
from softp4.dataplane.ports import Directions, PortError
from softp4.device import Device
from softp4.ending import Ended, Ending, ended_by_signals
from softp4.native.files import write_atomically
from softp4.p4rt.server import ServerError, Tls
from softp4.program.errors import ProgramError
from softp4.runtime.queueing import QueueStatistics
from softp4.tracing.tracer import Tracing

_UNUSED: Final = QueueStatistics(0, 0, 0, 0, 0, 0)
_log = logging.getLogger("softp4")
_WATCH_INTERVAL: Final = 1.0  # seconds between looks for trouble that the data path counts silently
_POLL_S: Final = 0.01  # seconds between looks at whether all has left


class StartError(Exception):
    """The switch cannot start, or broke off. The message says why."""


@dataclass(frozen=True)
class CaptureFile:
    """A capture from the start: of these ports (None: of all)."""

    path: Path
    ports: tuple[int, ...] | None = None
    directions: Directions = Directions.BOTH
    pcapng: bool = True


@dataclass(frozen=True)
class Settings:
    """A whole switch.

    Args:
        program: BMv2 JSON, or None to wait for a controller's.
        p4info: of the program, or None to look beside it.
        ports: what is open from the start.
        shm: directory of shared-memory ports.
        grpc: address of P4Runtime.
        captures: what is captured from the start.
        play_after: seconds before files are played.
        end_after_files: end when every port is a file and all have been played.
        ready_file: what is there while the switch serves.
        seed: what random numbers start from.
        threads: how many may run frames.
        control: socket of the control channel.
        trace: what is traced from the start.
    """

    program: Path | None = None
    p4info: Path | None = None
    ports: Sequence[PortSpec] = ()
    shm: Path | None = None
    grpc: str | None = None
    tls: Tls | None = None
    device_id: int = 1
    cpu_port: int = 510
    captures: Sequence[CaptureFile] = ()
    play_after: float = 0.0
    end_after_files: bool = True
    ready_file: Path | None = None
    seed: int | None = None
    threads: int = 1
    control: Path | None = None
    trace: Tracing | None = None


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until a signal, or until all files have been played.

    ``say`` takes what the user must be told when all is ready. Raises StartError.
    """
    try:
        with (
            ended_by_signals() as stop,
            Device(
                device_id=settings.device_id,
                cpu_port=settings.cpu_port,
                seed=settings.seed,
                threads=settings.threads,
            ) as device,
        ):
            with stop.interrupting():
                _open(device, settings)
            _run(device, settings, say, stop)
    except Ended:
        _log.info("stopped by a signal while starting")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise StartError(f"{where}{error.strerror or error}") from error
    except (
        PortError,
        ProgramError,
        ServerError,
        CaptureError,
        ControlAddressError,
        native.NoCompilerError,
        native.CompileError,
    ) as error:
        raise StartError(str(error)) from error


def _open(device: Device, settings: Settings) -> None:
    """Open ports and files, and load the program, for which a compiler may run long."""
    if settings.shm is not None:
        device.open_shm(settings.shm)
    for spec in settings.ports:
        device.add_port(spec)
    for capture in settings.captures:
        device.loop.capture(capture.path, capture.ports, capture.directions, pcapng=capture.pcapng)
    if settings.trace is not None:
        device.start_trace(settings.trace)
    if settings.program is not None:
        described = device.load(settings.program, settings.p4info)
        if settings.grpc is not None and not described:
            _log.warning("no P4Info beside %s: a controller must set the pipeline first", settings.program)


def _run(device: Device, settings: Settings, say: Callable[[str], None], stop: Ending) -> None:
    with ExitStack() as cleanup:
        cleanup.callback(_log_statistics, device)
        if settings.control is not None:
            control = ControlServer(settings.control, Operations(device).calls())
            cleanup.callback(control.close)
        if settings.grpc is not None:
            address = device.serve(settings.grpc, settings.tls)
            say(f"P4Runtime on {address}, device {settings.device_id}")
        ready = _ReadyFile(settings.ready_file, device, settings.control)
        cleanup.callback(ready.remove)
        _serve(device, settings, stop)


class _ReadyFile:
    """A JSON file that is there while the switch serves; written whole, by renaming."""

    def __init__(self, path: Path | None, device: Device, control: Path | None) -> None:
        self._path = path
        if path is None:
            return
        ports = {str(number): what for number, what in device.loop.ports().items()}
        content = {
            "grpc": device.address,
            "device_id": device.device_id,
            "pid": os.getpid(),
            "ports": ports,
            "control": None if control is None else str(control),
        }
        write_atomically(path, json.dumps(content) + "\n")

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Watch:
    """Says once what the data path counts silently and the user should know."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._reported: set[object] = set()

    def look(self) -> None:
        loop = self._device.loop
        for number, what in loop.ports().items():
            try:
                oversize = loop.statistics(number).rx_oversize
            except PortError:
                continue  # removed meanwhile
            if oversize:
                self._tell(
                    number,
                    f"port {number} ({what}): frames too long for the switch were dropped; turn segmentation "
                    "offload off on the sending host (ethtool -K IFACE tso off) and check its MTU",
                )
        for capture in loop.captures():
            if capture.error:
                self._tell(capture.path, f"the capture into {capture.path} stopped: {capture.error}")

    def _tell(self, key: object, message: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            _log.warning("%s", message)


def _serve(device: Device, settings: Settings, stop: Ending) -> None:
    """Run until a signal or, when every port is a file, until all have been played."""
    files = {spec.number: spec.kind for spec in settings.ports if isinstance(spec.kind, Pcap)}
    inputs = {number: file.source for number, file in files.items() if file.source is not None}
    watch = _Watch(device)
    failure: list[Exception] = []

    def play_files() -> None:
        try:
            if not stop.wait(settings.play_after):
                _log.info("played %d frames", play(device.loop, inputs, stop))
            while device.loop.waiting() and not stop.wait(_POLL_S):
                pass
        except (CaptureError, OSError, PortError) as error:
            failure.append(error)
        if failure or (settings.end_after_files and len(files) == len(settings.ports)):
            stop.set()

    # Messages of P4Runtime come and go in thousands. Looking for cycles as often as Python does, among all
    # that lives as long as the process besides, took a third of the time of writes.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
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
    if failure:
        raise failure[0]
    device.loop.close_files()
    device.stop_trace()


def _log_statistics(device: Device) -> None:
    for number, what in device.loop.ports().items():
        _log.info("port %d (%s): %s", number, what, device.loop.statistics(number))
        for priority, queue in enumerate(device.loop.queue_statistics(number)):
            if queue != _UNUSED:
                _log.info("port %d, queue %d: %s", number, priority, queue)
    if frames := device.loop.unknown_port_drops():
        _log.info("%d frames were sent to ports that are not there", frames)
