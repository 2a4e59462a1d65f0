# SPDX-License-Identifier: Apache-2.0
"""The inside of a network, natively: real switches, and the clean links between them (``csrc/fabric.c``)."""

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Final

from softp4.native.build import Signatures, load_library
from softp4.runtime.compiler import RUNTIME
from softp4.switch import MAX_FRAME, Switch

_NO_PORT: Final = 512
_CSRC: Final = Path(__file__).resolve().parent / "csrc"


class Target(IntEnum):
    """TraceKind of place that a switch's port leads to: C ``target``."""

    TO_SWITCH = 1
    TO_HOST = 2
    TO_CALLER = 3


class _Output(Structure):
    _fields_ = (("id", c_uint32), ("len", c_uint32), ("bytes", c_void_p))


class _State(Structure):
    """The public head of C ``fabric``."""

    _fields_ = (
        ("next", c_uint64),
        ("now", c_uint64),
        ("outputs", POINTER(_Output)),
        ("events", c_uint64),
    )


SIGNATURES: Final[Signatures] = {
    "fabric_new": (POINTER(_State), [c_uint32, POINTER(c_void_p)]),
    "fabric_free": (None, [c_void_p]),
    "fabric_attach": (None, [c_void_p, *[c_uint32] * 5, c_uint64, c_uint64]),
    "fabric_set_down": (None, [c_void_p, c_uint32, c_int]),
    "fabric_arrive": (None, [c_void_p, c_uint64, c_uint32, c_uint32, c_char_p, c_uint32]),
    "fabric_run": (c_int64, [c_void_p, c_uint64]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled library."""
    return load_library(
        "fabric", [_CSRC / "fabric.c"], include=[RUNTIME], flags=["-O2"], signatures=SIGNATURES
    )


class Fabric:
    """Runs the switches of a network and carries frames between them.

    Frames for hosts, and those on links that the caller minds itself, come out by the receivers that
    `receiver` numbered.
    """

    def __init__(self, switches: Sequence[Switch]) -> None:
        native = library()
        handles = (c_void_p * len(switches))(*(switch.handle for switch in switches))
        state = native.fabric_new(len(switches), handles)
        if not state:
            raise MemoryError(f"no memory for a network of {len(switches)} switches")
        self._switches = tuple(switches)  # kept alive
        self._state: _State = state.contents
        self._handle: int | None = ctypes.addressof(self._state)
        self._receivers: list[Callable[[bytes], None]] = []
        self._c_run, self._c_arrive = native.fabric_run, native.fabric_arrive

    @property
    def next(self) -> int:
        """Time of what happens next; 2^64 - 1 when nothing will."""
        time: int = self._state.next
        return time

    @property
    def now(self) -> int:
        """Time of what happened last."""
        time: int = self._state.now
        return time

    @property
    def events(self) -> int:
        """Return how many events there have been."""
        count: int = self._state.events
        return count

    def receiver(self, receive: Callable[[bytes], None]) -> int:
        """Return the number of a new receiver of frames."""
        self._receivers.append(receive)
        return len(self._receivers) - 1

    def attach(
        self,
        node: int,
        port: int,
        target: Target,
        there: int,
        there_port: int = 0,
        *,
        rate_bps: int | None = None,
        delay: int = 0,
    ) -> None:
        """Lead port ``port`` of switch ``node`` to ``there``: a switch and its port, or a receiver."""
        library().fabric_attach(self._handle, node, port, target, there, there_port, rate_bps or 0, delay)

    def set_down(self, node: int, down: bool) -> None:
        """Let switch ``node`` take in and send nothing from now on, or again what it is to."""
        library().fabric_set_down(self._handle, node, down)

    def arrive(self, time: int, node: int, port: int, frame: bytes) -> None:
        """Let a frame arrive at a switch's port at ``time``, which is not past.

        Raises ValueError for one longer than MAX_FRAME bytes, which no switch takes.
        """
        self._carry(time, node, port, frame)

    def reach(self, time: int, receiver: int, frame: bytes) -> None:
        """Let a frame reach a receiver at ``time``, which is not past. Raises ValueError as `arrive` does."""
        self._carry(time, receiver, _NO_PORT, frame)

    def _carry(self, time: int, there: int, port: int, frame: bytes) -> None:
        if len(frame) > MAX_FRAME:
            raise ValueError(f"a network carries frames of at most {MAX_FRAME} bytes, not {len(frame)}")
        self._c_arrive(self._handle, time, there, port, frame, len(frame))

    def run(self, until: int) -> list[tuple[Callable[[bytes], None], bytes]]:
        """Let things happen up to ``until``, or until frames come out; return them and their receivers."""
        count = self._c_run(self._handle, until)
        if count < 0:
            raise MemoryError("no memory for the frames of a network")
        outputs, receivers = self._state.outputs, self._receivers
        taken = []
        for index in range(count):
            output = outputs[index]
            taken.append((receivers[output.id], ctypes.string_at(output.bytes, output.len)))
        return taken

    def close(self) -> None:
        """Free it. Its switches are the caller's. Closing twice is harmless."""
        if self._handle is not None:
            library().fabric_free(self._handle)
            self._handle = None
