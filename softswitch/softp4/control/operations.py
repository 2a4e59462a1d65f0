# SPDX-License-Identifier: Apache-2.0
"""Calls of the control channel, on a device. A call's arguments and result are plain JSON values.

| call | arguments | result |
| --- | --- | --- |
| ``info`` | | device_id, pid, grpc, cpu_port, seconds, program, unknown_port_drops |
| ``ports`` | | list of: port, attached, up, queueing, statistics |
| ``port_add`` | spec: as after ``--port`` | the port, as in ``ports`` |
| ``port_remove``, ``port_up``, ``port_down`` | port | null |
| ``queueing`` | port | limits, queues (by priority) |
| ``queueing_set`` | port; rate, pps, burst, depth, depth_bytes as after ``--port`` | as ``queueing`` |
| ``queueing_clear`` | port | null |
| ``captures`` | | list of: file, ports (null: all), directions, error |
| ``capture_start`` | file, ports (null: all), directions: "in", "out" or "both" | null |
| ``capture_stop`` | file | null |
| ``trace_start`` | file (null: the switch's stderr), ports (null: all), frames (null: all), full | null |
| ``trace_stop`` | | null |
| ``crcs`` | | list of: calculation, bits, polynomial, initial, final_xor, reflect_data, reflect_remainder |
| ``crc_set`` | calculation; the rest as in ``crcs``, but for polynomial 0 or false if not given | null |
| ``assertions`` | | list of: place, failures |
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from softp4 import native
from softp4.control.server import Call, CallError
from softp4.dataplane.port_spec import Pcap, parse_limits, parse_port
from softp4.dataplane.ports import Capture, Directions, PortError, PortState
from softp4.device import Device
from softp4.errors import ControlError
from softp4.program.calculations import CrcParameters
from softp4.runtime.queueing import Queueing
from softp4.tracing.tracer import Tracing

LIMITS: Final = ("rate", "pps", "burst", "depth", "depth_bytes")
"""What limits a port, by the names that ``--port`` has for it."""

_T = TypeVar("_T")


class Operations:
    """The calls for one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._started = time.monotonic()

    def calls(self) -> dict[str, Call]:
        """Return every call by its name. What a call raises says what was wrong."""
        return {
            name: _guarded(getattr(self, f"_{name}"))
            for name in (
                "info",
                "ports",
                "port_add",
                "port_remove",
                "port_up",
                "port_down",
                "queueing",
                "queueing_set",
                "queueing_clear",
                "captures",
                "capture_start",
                "capture_stop",
                "trace_start",
                "trace_stop",
                "crcs",
                "crc_set",
                "assertions",
            )
        }

    def _info(self) -> dict[str, Any]:
        device = self._device
        return {
            "device_id": device.device_id,
            "pid": os.getpid(),
            "grpc": device.address,
            "cpu_port": device.cpu_port,
            "seconds": time.monotonic() - self._started,
            "program": device.describe_program(),
            "unknown_port_drops": device.loop.unknown_port_drops(),
        }

    def _ports(self) -> list[dict[str, Any]]:
        found = []
        for number, state in self._device.loop.states().items():
            try:
                found.append(self._port(number, state))
            except PortError:
                continue  # removed meanwhile
        return found

    def _port(self, number: int, state: PortState) -> dict[str, Any]:
        return {
            "port": number,
            "attached": state.attached,
            "up": state.up,
            "queueing": _limits(state.queueing),
            "statistics": asdict(self._device.loop.statistics(number)),
        }

    def _port_add(self, *, spec: str) -> dict[str, Any]:
        wanted = parse_port(_text("spec", spec))
        if isinstance(wanted.kind, Pcap) and wanted.kind.source is not None:
            raise CallError("a file to play is given when the switch starts")
        self._device.add_port(wanted)
        return self._port(wanted.number, self._device.loop.states()[wanted.number])

    def _port_remove(self, *, port: int) -> None:
        self._device.remove_port(_number("port", port))

    def _port_up(self, *, port: int) -> None:
        self._device.set_port_up(_number("port", port), True)

    def _port_down(self, *, port: int) -> None:
        self._device.set_port_up(_number("port", port), False)

    def _queueing(self, *, port: int) -> dict[str, Any]:
        queues = self._device.loop.queue_statistics(_number("port", port))
        state = self._device.loop.states().get(port)
        return {
            "limits": _limits(state.queueing if state else None),
            "queues": [asdict(queue) for queue in queues],
        }

    def _queueing_set(self, *, port: int, **limits: Any) -> dict[str, Any]:
        if unknown := set(limits) - set(LIMITS):
            raise CallError(f"there is no limit {min(unknown)!r}; limits are {', '.join(LIMITS)}")
        pairs = [(name, str(value)) for name, value in limits.items() if value is not None]
        if not pairs:
            raise CallError(f"give at least one limit: {', '.join(LIMITS)}")
        self._device.loop.set_queueing(_number("port", port), parse_limits(pairs))
        return self._queueing(port=port)

    def _queueing_clear(self, *, port: int) -> None:
        self._device.loop.set_queueing(_number("port", port), None)

    def _captures(self) -> list[dict[str, Any]]:
        return [_capture(capture) for capture in self._device.loop.captures()]

    def _capture_start(self, *, file: str, ports: list[int] | None = None, directions: str = "both") -> None:
        names = {direction.name.lower(): direction for direction in Directions if direction.name}
        names["both"] = Directions.BOTH
        if directions not in names:
            raise CallError("directions: in, out or both")
        self._device.loop.capture(Path(_text("file", file)), _ports(ports), names[directions])

    def _capture_stop(self, *, file: str) -> None:
        self._device.loop.stop_capture(Path(_text("file", file)))

    def _trace_start(
        self,
        *,
        file: str | None = None,
        ports: list[int] | None = None,
        frames: int | None = None,
        full: bool = False,
    ) -> None:
        if frames is not None and (type(frames) is not int or frames < 1):
            raise CallError("frames: a number, or null for all")
        chosen = _ports(ports)
        path = None if file is None else Path(_text("file", file))
        self._device.start_trace(
            Tracing(path, None if chosen is None else tuple(chosen), frames, _flag("full", full))
        )

    def _trace_stop(self) -> None:
        self._device.stop_trace()

    def _crcs(self) -> list[dict[str, Any]]:
        with self._device.running_switch() as switch:
            calculations = switch.program.calculations
            return [
                {"calculation": name, "bits": calculations[name].crc_bits, **asdict(parameters)}
                for name, parameters in switch.crcs.all().items()
            ]

    def _crc_set(
        self,
        *,
        calculation: str,
        polynomial: int,
        initial: int = 0,
        final_xor: int = 0,
        reflect_data: bool = False,
        reflect_remainder: bool = False,
    ) -> None:
        parameters = CrcParameters(
            _whole("polynomial", polynomial),
            _whole("initial", initial),
            _whole("final_xor", final_xor),
            _flag("reflect_data", reflect_data),
            _flag("reflect_remainder", reflect_remainder),
        )
        with self._device.running_switch() as switch:
            switch.crcs.set(_text("calculation", calculation), parameters)

    def _assertions(self) -> list[dict[str, Any]]:
        with self._device.running_switch() as switch:
            failures = switch.assertion_failures()
        return [{"place": place, "failures": count} for place, count in failures.items()]


def _guarded(operation: Callable[..., _T]) -> Call:
    """Turn errors of the arguments, of ports and of the switch into CallError."""

    def call(arguments: dict[str, Any]) -> _T:
        try:
            return operation(**arguments)
        except ControlError as error:
            raise CallError(error.message) from error
        except (PortError, ValueError, OSError, native.NoCompilerError, native.CompileError) as error:
            raise CallError(str(error)) from error
        except TypeError as error:  # names that the call does not have, or lacks
            raise CallError(str(error).rpartition(".")[2]) from error

    return call


def _number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 16:
        raise CallError(f"{name}: a port number, not {value!r}")
    return value


def _whole(name: str, value: Any) -> int:
    if type(value) is not int:
        raise CallError(f"{name}: a whole number, not {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise CallError(f"{name}: true or false")
    return value


def _ports(ports: Any) -> list[int] | None:
    if ports is not None and not isinstance(ports, list):
        raise CallError("ports: a list of port numbers, or null for all")
    return None if ports is None else [_number("ports", port) for port in ports]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise CallError(f"{name}: a text, not {value!r}")
    return value


def _limits(queueing: Queueing | None) -> dict[str, int | None] | None:
    if queueing is None:
        return None
    values = (
        queueing.rate_bps,
        queueing.rate_pps,
        queueing.burst_bytes,
        queueing.depth_packets,
        queueing.depth_bytes,
    )
    return dict(zip(LIMITS, values, strict=True))


def _capture(capture: Capture) -> dict[str, Any]:
    return {
        "file": str(capture.path),
        "ports": None if capture.ports is None else list(capture.ports),
        "directions": "both"
        if capture.directions == Directions.BOTH
        else str(capture.directions.name).lower(),
        "error": capture.error,
    }
