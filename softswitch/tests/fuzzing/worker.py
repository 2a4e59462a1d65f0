# SPDX-License-Identifier: Apache-2.0
"""One program, frames made for its parser, and a control plane that does anything at any time.

`tests.fuzzing.sanitized` runs it in a process of its own, whose native code has sanitizers: what
they find ends it.
"""

import ctypes
import json
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from softp4.native.build import CompileError
from softp4.program.errors import ProgramError
from softp4.program.loader import load_program
from softp4.runtime.bindings import EMIT
from softp4.switch import Switch
from tests.differential.frames import FrameMaker
from tests.differential.vocabulary import Vocabulary
from tests.fuzzing.control import PORTS, RandomControl

_LONGEST = 2050
_FRAMES_PER_CALL = 8


class _Sink:
    """Takes what leaves, every byte of it."""

    def __init__(self) -> None:
        self.frames = 0
        self.emit = EMIT(self._take)

    def _take(self, _: int | None, port: int, data: int, length: int) -> None:
        ctypes.string_at(data, length)
        self.frames += 1


def _process(switch: Switch, port: int, frame: bytes, now: int, sink: _Sink) -> None:
    """Like Switch.process, with the frame in a block exactly as long: one byte more is an error."""
    block = (ctypes.c_char * max(len(frame), 1))()
    ctypes.memmove(block, frame, len(frame))
    switch._native._c.swc_process(switch.handle, port, block, len(frame), now, sink.emit, None)


def run(path: Path, seed: int, frames: int, *, trace: bool) -> int:
    """Return how many frames left. Raises ProgramError, CompileError, MemoryError."""
    rng = random.Random(seed)
    root = json.loads(path.read_bytes())
    sink = _Sink()
    with Switch(load_program(path), cpu_port=510, seed=seed) as switch:
        vocabulary = Vocabulary(root, rng)
        control = RandomControl(switch, vocabulary, rng, trace=trace)
        made = _frames(root, vocabulary, rng)
        now = 0
        for number in range(frames):
            now += rng.choice((0, 10, 1000, 10**6, 10**8))
            if number % _FRAMES_PER_CALL == 0:
                control.change(now)
            if rng.random() < 0.1:
                switch.step(now)
            _process(switch, rng.choice((*PORTS, rng.randrange(512))), next(made), now, sink)
    return sink.frames


def _frames(root: Any, vocabulary: Vocabulary, rng: random.Random) -> Iterable[bytes]:
    """Yield frames for a program; for one whose parser a frame maker does not understand, any bytes."""
    try:
        maker = FrameMaker(root, vocabulary, rng)
    except Exception:  # of a spoiled program
        maker = None
    while True:
        frame = b""
        if maker is not None and rng.random() < 0.9:
            try:
                frame = maker.frame()
            except Exception:
                maker = None
        if not frame:
            frame = rng.randbytes(rng.choice((0, 1, 14, 34, 60, 200, rng.randrange(_LONGEST))))
        yield frame


def main(arguments: list[str]) -> None:
    """PROGRAM SEED FRAMES TRACE; prints what became of it."""
    os.environ.pop("LD_PRELOAD", None)  # the compiler needs no sanitizer
    path, seed, frames, trace = Path(arguments[0]), *map(int, arguments[1:])
    try:
        print(f"{run(path, seed, frames, trace=bool(trace))} frames left")
    except (ProgramError, MemoryError) as error:
        print(f"refused: {error}")
    except CompileError as error:
        print(f"C that does not compile: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
