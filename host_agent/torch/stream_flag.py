# SPDX-License-Identifier: Apache-2.0
"""Flags in host memory that a CUDA stream waits for, on the device: the thread that blocks it goes on.

An event makes a stream wait only for work that has been enqueued. Work that a thread will enqueue later needs
a word in memory that the device polls. CUDA's driver has both sides of it; torch has no name for them.
"""

import ctypes
import functools
from typing import Any, Final

import torch

from weir.host_agent.torch.staging import own_stream

_RAISED: Final = 1
_AT_LEAST: Final = 0  # CU_STREAM_WAIT_VALUE_GEQ
_PLAINLY: Final = 0  # CU_STREAM_WRITE_VALUE_DEFAULT


class StreamFlag:
    """A flag that the current stream of the calling thread waits for, from now on.

    Args:
        device: whose current stream it is.

    Raises:
        RuntimeError: the device or its driver cannot wait so.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream(device)
            stream.query()  # binds the device's context to a thread that has not used it yet
            self._call("cuStreamWaitValue32_v2", stream, _AT_LEAST)
            # The pinned allocator keeps memory for copies that are under way: the flag outlives the wait.
            self._word.to(device, non_blocking=True)

    def lift(self, after: "torch.cuda.Event | None") -> None:
        """Let the stream go on: when the device has passed ``after``, or now. Waits for nothing itself."""
        if after is None or not self._lift_on_device(after):
            self._word.fill_(_RAISED)

    def _lift_on_device(self, after: "torch.cuda.Event") -> bool:
        """Return whether the device takes the work; one that has failed does not."""
        try:
            with torch.cuda.device(self._device):
                stream = own_stream(self._device)
                stream.wait_event(after)
                self._call("cuStreamWriteValue32_v2", stream, _PLAINLY)
        except RuntimeError:
            return False
        return True

    def _call(self, name: str, stream: "torch.cuda.Stream", flags: int) -> None:
        status = getattr(_driver(), name)(
            ctypes.c_void_p(stream.cuda_stream),
            ctypes.c_uint64(self._word.data_ptr()),
            ctypes.c_uint32(_RAISED),
            ctypes.c_uint(flags),
        )
        if status:
            raise RuntimeError(f"{name} failed with CUDA's error {status}")


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
