# SPDX-License-Identifier: Apache-2.0
"""Whole frames of one job over a shared-memory port, which links of this process may use for other jobs."""

import ctypes
from pathlib import Path
from typing import Final

from softp4.native.ring import MAX_FRAME
from weir.host_agent.transport import bindings
from weir.host_agent.transport.memory_port import MemoryPort

_BATCH: Final = 64


class FramePort:
    """A job's part in a host port of a switch's directory. For one thread at a time.

    Raises OSError when the port cannot be opened, saying why.
    """

    def __init__(self, directory: Path | str, number: int, job: int) -> None:
        self._port = MemoryPort(directory, number)
        self._lib = bindings.library()
        self._handle: int | None = self._lib.weir_frames_open(self._port.handle, job)
        if not self._handle:
            self._port.close()
            raise MemoryError(f"no memory for frames of port {number} in {directory}")
        self._frames = ctypes.create_string_buffer(_BATCH * MAX_FRAME)
        self._lengths = (ctypes.c_uint32 * _BATCH)()

    def send(self, frames: list[bytes]) -> int:
        """Send frames until there is no more room; return how many were sent."""
        sent = 0
        for frame in frames:
            if not self._lib.weir_frames_send(self._handle, frame, len(frame)):
                break
            sent += 1
        if sent:
            self._lib.weir_frames_notify(self._handle)
        return sent

    def receive(self) -> list[bytes]:
        """Return the frames of the job that are there, some of them."""
        count = self._lib.weir_frames_receive(self._handle, self._frames, self._lengths, _BATCH)
        memory = memoryview(self._frames)
        return [bytes(memory[at * MAX_FRAME :][: self._lengths[at]]) for at in range(count)]

    def wait(self, timeout_s: float) -> None:
        """Sleep until a frame may be there, or for so long."""
        self._lib.weir_frames_wait(self._handle, round(timeout_s * 1e9))

    def close(self) -> None:
        """Detach. Closing twice is harmless."""
        if self._handle is not None:
            self._lib.weir_frames_close(self._handle)
            self._handle = None
            self._port.close()
