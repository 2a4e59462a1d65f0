# SPDX-License-Identifier: Apache-2.0
"""The recorder of a switch: what happens to its frames, as events."""

from collections.abc import Collection
from typing import Final

from softp4.program.types import Program
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.runtime.compiler import load_switch_library
from softp4.runtime.queueing import NEVER
from softp4.tracing.events import Decoder, Event

MAX_TRACED_PORT: Final = 511
_ROOM: Final = 1 << 19  # words of records kept until they are read


class Recorder:
    """Records what happens to frames. Thread-safe."""

    def __init__(self, native: NativeSwitch, program: Program) -> None:
        self._native = native
        self._program = program
        self._decoder: Decoder | None = None

    def start(self, ports: Collection[int] | None = None, frames: int | None = None) -> None:
        """Record what happens to frames from now on, until `read` takes it; the rest runs as ever.

        The first time, the program is compiled once more, with tracepoints. Its state stays. Traced frames
        take many times as long, and are numbered from 1.

        Args:
            ports: trace what comes in on these ports only.
            frames: trace this many frames only.
        """
        wanted = range(MAX_TRACED_PORT + 1) if ports is None else [p for p in ports if p <= MAX_TRACED_PORT]
        traced = load_switch_library(self._program, trace=True)
        with self._native.control:
            self._native.start_trace(traced, wanted, NEVER if frames is None else frames, _ROOM)
            self._decoder = Decoder(self._program)

    @exclusive
    def stop(self) -> None:
        """Record no more. What was not read is lost. Harmless when nothing is traced."""
        self._native.stop_trace()

    @exclusive
    def read(self) -> tuple[list[Event], int]:
        """Take what was recorded, and how many packets were lost because nobody took it in time."""
        if self._decoder is None:
            return [], 0
        records, lost = self._native.read_trace(_ROOM)
        return list(self._decoder.events(records)), lost
