# SPDX-License-Identifier: Apache-2.0
"""A whole soft switch: ports, programs and the P4Runtime server, put together and taken apart in order."""

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format

from softp4.dataplane.port_spec import Claimed, Interface, Pcap, PortSpec, Shm, Tunnel
from softp4.dataplane.ports import PortError, PortLoop
from softp4.dataplane.shm_directory import ShmDirectory
from softp4.errors import Code, ControlError
from softp4.failures import Failures
from softp4.p4rt.pipeline import PipelineStore
from softp4.p4rt.server import P4RuntimeServer, Tls
from softp4.p4rt.service import P4RuntimeService
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.program.errors import ProgramError
from softp4.program.loader import Program
from softp4.switch import Switch
from softp4.tracing.tracer import Tracer, Tracing

P4INFO_ENDINGS: Final = (".p4info.txtpb", ".p4info.txt", ".p4info.pb.txt", ".p4info.pbtxt")
"""Where a program's P4Info is looked for: its own name with ``.json`` replaced by one of these."""

_TICK: Final = 0.01  # seconds between looks at what the program tells controllers
_POLL_S: Final = 0.2  # seconds between looks at whether to stop
_log = logging.getLogger(__name__)


class Device:
    """One switch as the outside sees it.

    Add ports through `loop`, optionally `load` a program and `serve` P4Runtime, then `start`.

    Args:
        device_id: the device's P4Runtime id.
        cpu_port: the port that leads to the controller.
        seed: what random() of the programs starts from; None: every switch differs.
        threads: how many may run frames, where the program allows it (codegen/sharding.py).

    Attributes:
        loop: the ports.
        address: where P4Runtime is served, or None.
    """

    def __init__(
        self, *, device_id: int = 1, cpu_port: int = 510, seed: int | None = None, threads: int = 1
    ) -> None:
        self.device_id = device_id
        self.threads = threads
        self.cpu_port = cpu_port
        self.seed = secrets.randbits(64) if seed is None else seed
        self.loop = PortLoop()
        self.address: str | None = None
        self._server: P4RuntimeServer | None = None
        self._pipelines = PipelineStore(self._make_switch, self._run)
        self._bare_switch: Switch | None = None
        self._program: tuple[Program, str] | None = None  # that runs, and who brought it
        self._switch: Switch | None = None  # what the loop runs
        self._tracer: Tracer | None = None
        self._changing = threading.Lock()  # held while the program, a port's state or the trace changes
        self._down: set[int] = set()  # ports that programs are to send around
        self._service = P4RuntimeService(device_id, self._pipelines, self._packet_out)
        self._shm: ShmDirectory | None = None
        self._stopping = threading.Event()
        self._packet_ins: threading.Thread | None = None
        self._notifications: threading.Thread | None = None
        try:
            self.loop.add_queue(cpu_port, "cpu")
        except PortError:
            self.loop.close()
            raise

    def _make_switch(self, program: Program | Path) -> Switch:
        switch = Switch(
            program, device_id=self.device_id, cpu_port=self.cpu_port, seed=self.seed, threads=self.threads
        )
        with self._changing:
            if self._tracer is not None:
                self._tracer.prepare(switch)
        return switch

    def _run(self, switch: Switch) -> None:
        self._take_over(switch, "a controller")
        if self._bare_switch is not None:
            self._bare_switch.close()
            self._bare_switch = None

    def _take_over(self, switch: Switch, origin: str) -> None:
        with self._changing:
            for port in self._down:
                switch.set_port_up(port, False)
            self.loop.set_switch(switch)
            self._program = switch.program, origin
            self._switch = switch
            if self._tracer is not None:
                self._tracer.follow(switch)

    def start_trace(self, wanted: Tracing) -> None:
        """Print what goes through the switch, under any program, until `stop_trace`; ends an earlier trace.

        Raises OSError (the file), and what compiling a program raises (see native.build).
        """
        with self._changing:
            self._stop_trace()
            self._tracer = Tracer(wanted, self._switch)

    def stop_trace(self) -> None:
        """Print no more. Harmless when nothing is traced. Raises OSError when not all was written."""
        with self._changing:
            self._stop_trace()

    def _stop_trace(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()

    def open_shm(self, directory: Path) -> None:
        """Take a directory for shared-memory ports. Raises PortError when another switch serves it."""
        self._shm = ShmDirectory(directory)

    def add_port(self, spec: PortSpec) -> None:
        """Open a port, also while frames pass. A capture file to play is left to the caller.

        Raises PortError.
        """
        match spec.kind:
            case Interface(name):
                self.loop.add_interface(spec.number, name)
            case Tunnel(local, peer):
                self.loop.add_udp(spec.number, local, peer)
            case Claimed(local, secret):
                self.loop.add_claimed(spec.number, local, secret)
            case Pcap(source, sink, pcapng):
                what = f"pcap {source or '-'}"
                self.loop.add_queue(spec.number, what, sink or Path(os.devnull), pcapng=pcapng)
            case Shm():
                if self._shm is None:
                    raise PortError(
                        f"port {spec.number}: the switch has no directory for shared memory (--shm)"
                    )
                self.loop.add_shm(spec.number, self._shm.path)
        if spec.queueing is not None:
            try:
                self.loop.set_queueing(spec.number, spec.queueing)
            except PortError:
                self.loop.remove(spec.number)
                raise
        self._tell_state(spec.number, True)

    def remove_port(self, number: int) -> None:
        """Close a port, which then counts as down. Raises PortError: there is none, or it is the CPU port."""
        if number == self.cpu_port:
            raise PortError(f"port {number} leads to the controller: it stays")
        self.loop.remove(number)
        self._tell_state(number, False)

    def set_port_up(self, number: int, up: bool) -> None:
        """Bring a port up or down. Groups of action profiles avoid members that watch one that is down.

        Raises PortError when there is none.
        """
        self.loop.set_up(number, up)
        self._tell_state(number, up)

    def _tell_state(self, number: int, up: bool) -> None:
        """Tell the program that runs, and those that follow, whether a port is up."""
        with self._changing:
            (self._down.discard if up else self._down.add)(number)
            if self._switch is not None:
                self._switch.set_port_up(number, up)

    def describe_program(self) -> dict[str, Any] | None:
        """Return the program that runs, in plain values: who brought it, and what a control plane sees of
        it.
        """
        if self._program is None:
            return None
        program, source = self._program
        return {
            "from": source,
            "sha256": program.digest,
            "tables": sorted(program.tables),
            "actions": sorted({action.name for action in program.actions.values()}),
            "counters": sorted(program.counters),
            "registers": sorted(program.registers),
            "threads": self._describe_threads(),
        }

    def _describe_threads(self) -> dict[str, Any] | None:
        if self._switch is None:
            return None
        threads = self._switch.threads
        return {
            "count": threads.count,
            "shared_by": threads.by,
            "why_not": list(threads.why_not),
            "packets": threads.shares(),
        }

    @contextmanager
    def running_switch(self) -> Iterator[Switch]:
        """Yield the switch that frames run through; no controller replaces it while this lasts.

        Raises ControlError FAILED_PRECONDITION when there is no program yet.
        """
        with self._pipelines.lock:
            if self._switch is None:
                raise ControlError(Code.FAILED_PRECONDITION, "no program is loaded")
            yield self._switch

    def load(self, program: Path, p4info: Path | None = None) -> bool:
        """Run a BMv2 JSON file from the start.

        With a P4Info, given or found beside it, controllers can use it without setting a pipeline; the
        result says whether there is one. Raises ProgramError (UnsupportedConstruct) and OSError.
        """
        switch = self._make_switch(program)
        self._take_over(switch, str(program))
        self._bare_switch = switch
        p4info = p4info or find_p4info(program)
        if p4info is None:
            return False
        config = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=program.read_bytes())
        _parse_p4info(p4info, config.p4info)
        self._pipelines.adopt(config, switch)
        self._bare_switch = None
        return True

    def serve(self, address: str, tls: Tls | None = None) -> str:
        """Serve P4Runtime. Returns the address, with the port that was picked. Raises ServerError."""
        self._server = P4RuntimeServer(self._service, address, tls)
        self.address = self._server.address
        return self.address

    def start(self) -> None:
        """Let frames through."""
        self.loop.start()
        self._packet_ins = threading.Thread(target=self._forward_packet_ins, name="packet-in")
        self._packet_ins.start()
        self._notifications = threading.Thread(target=self._forward_notifications, name="notifications")
        self._notifications.start()
        if self.threads > 1:  # nobody waits for what it is about to find out
            threading.Thread(target=self._share_frames, name="sharing", daemon=True).start()

    def close(self) -> None:
        """Stop everything; shared-memory files are removed. Twice is harmless."""
        self._stopping.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._packet_ins is not None:
            self._packet_ins.join()
            self._packet_ins = None
        if self._notifications is not None:
            self._notifications.join()
            self._notifications = None
        self.loop.close()
        with contextlib.suppress(OSError):  # who wants to know calls stop_trace
            self.stop_trace()
        if self._shm is not None:
            self._shm.close()
        self._pipelines.close()
        if self._bare_switch is not None:
            self._bare_switch.close()
            self._bare_switch = None

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _packet_out(self, frame: bytes) -> None:
        try:
            self.loop.inject(self.cpu_port, frame)
        except PortError as error:
            raise ControlError(Code.RESOURCE_EXHAUSTED, str(error)) from error

    def _forward_packet_ins(self) -> None:
        failures = Failures(_log, "a packet-in was lost")
        while not self._stopping.is_set():
            frame = self.loop.receive(self.cpu_port, _POLL_S)
            if frame is not None:
                with failures.survived():
                    self._service.packet_in(frame)

    def _forward_notifications(self) -> None:
        failures = Failures(_log, "digests or idle timeouts were lost")
        busy = False
        while not self._stopping.wait(_TICK if busy else _POLL_S):
            with failures.survived():
                busy = self._service.notifications.tick(self.loop.now())

    def _share_frames(self) -> None:
        failures = Failures(_log, "frames are not shared among threads")
        while not self._stopping.wait(_POLL_S):
            with failures.survived():
                switch = self._switch
                if switch is not None and switch.threads.due:
                    switch.threads.share()
                    if not self._stopping.is_set():
                        _log.info("%s", switch.threads.describe())


def find_p4info(program: Path) -> Path | None:
    """Return the P4Info text file beside a program, if there is one."""
    for ending in P4INFO_ENDINGS:
        path = program.with_name(program.name.removesuffix(".json") + ending)
        if path.exists():
            return path
    return None


def _parse_p4info(path: Path, message: Any) -> None:
    try:
        text_format.Parse(path.read_text(), message, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ProgramError(f"{path} is not P4Info in protobuf's text format: {error}") from error
