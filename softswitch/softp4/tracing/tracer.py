# SPDX-License-Identifier: Apache-2.0
"""``softp4 run --trace``: print what a switch records while it runs, whatever program it has."""

import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TextIO

from softp4.program.types import Program
from softp4.tracing.printing import TraceText, print_trace
from softp4.tracing.recorder import Recorder

_INTERVAL: Final = 0.05  # seconds between looks at what was recorded


class Recorded(Protocol):
    """A switch, as far as a trace needs it."""

    program: Program
    recorder: Recorder


@dataclass(frozen=True)
class Tracing:
    """Settings of a trace: what to trace, and where to print it.

    Args:
        file: where to print; None: stderr.
        ports: trace what comes in on these only.
        frames: trace this many only.
        full: print every statement, however many an action has.
    """

    file: Path | None = None
    ports: tuple[int, ...] | None = None
    frames: int | None = None
    full: bool = False


class Tracer:
    """Prints what goes through a switch from the moment that it is made until `close`.

    Args:
        wanted: what to trace, and where to; in colours when that is a terminal.
        switch: what runs now, if anything.

    Raises OSError (the file), and what compiling a program raises (see native.build).
    """

    def __init__(self, wanted: Tracing, switch: Recorded | None) -> None:
        self._wanted = wanted
        self._out: TextIO = sys.stderr if wanted.file is None else wanted.file.open("w")
        self._lock = threading.Lock()
        self._switch: Recorded | None = None
        self._prepared: Recorded | None = None
        self._text: TraceText | None = None
        self._failure: OSError | None = None
        self._stopping = threading.Event()
        if switch is not None:
            self.follow(switch)
        self._thread = threading.Thread(target=self._watch, name="trace")
        self._thread.start()

    def prepare(self, switch: Recorded) -> None:
        """Let a switch record from its first frame on; it need not take over at all."""
        self._prepared = switch
        switch.recorder.start(self._wanted.ports, self._wanted.frames)

    def follow(self, switch: Recorded) -> None:
        """Go on with the switch that has taken over; the old one is still open."""
        if switch is not self._prepared:
            self.prepare(switch)
        with self._lock:
            self._try_to_print()
            self._switch, self._text = switch, TraceText(switch.program, full=self._wanted.full)

    def close(self) -> None:
        """Print the rest and let the switch record no more. Raises OSError when not all was written."""
        self._stopping.set()
        self._thread.join()
        with self._lock:
            self._try_to_print()
            if self._switch is not None:
                self._switch.recorder.stop()
                self._switch = None
        if self._wanted.file is not None:
            try:
                self._out.close()
            except OSError as error:
                self._failure = self._failure or error
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror, str(self._wanted.file or "stderr"))

    def _watch(self) -> None:
        while not self._stopping.wait(_INTERVAL):
            with self._lock:
                self._try_to_print()

    def _try_to_print(self) -> None:
        """Print, until that fails for the first time: the switch goes on."""
        if self._failure is None:
            try:
                self._print()
            except OSError as error:
                self._failure = error

    def _print(self) -> None:
        if self._switch is None or self._text is None:
            return
        events, lost = self._switch.recorder.read()
        print_trace(self._text, events, self._out)
        if lost:
            self._out.write(f"… {lost} more that came faster than they could be written\n")
        if events or lost:
            self._out.flush()
