# SPDX-License-Identifier: Apache-2.0
"""Device tensors in collectives: host copies that the network works on, and the streams that make them.

The switch adds up host memory, so a CUDA tensor goes there and back: to pinned memory, on a stream of the
thread that works for the network, behind the work that the caller's stream had under way. The issuing thread
records an event and goes on. The thread of the network waits for events, never for a stream or a device. The
end of an operation is an event again, which the stream of anyone who waits for the operation waits for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from weir.host_agent.collectives.tensor_memory import overwrite
from weir.host_agent.compression.transfer import begin_copy, mark, pinned_like

_PRIORITY: Final = -1
_OVERLAPS: Final = 1  # c10's MemOverlap: some elements surely share memory


def devices_of(*tensors: Any, sparse: bool = False) -> list[torch.device]:
    """Return the CUDA devices that tensors in nested lists are on, each once.

    sparse: whether they may be sparse, with indices (COO).

    Raises:
        TypeError: a tensor is sparse otherwise, or on a device that is neither the host nor CUDA's.
    """
    found: dict[torch.device, None] = {}
    for tensor in _flat(tensors):
        if tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(
                f"the weir backend works on CPU and CUDA tensors, this one is on {tensor.device}: "
                "copy it with .cpu()"
            )
        if tensor.layout != torch.strided and not (sparse and tensor.is_sparse):
            raise TypeError(
                f"this is a tensor of layout {tensor.layout}: the weir backend sums sparse ones in all_reduce"
                " alone, and only with indices (torch.sparse_coo). Make it dense with .to_dense()"
            )
        if tensor.is_cuda:
            found[tensor.device] = None
    return list(found)


def check_writable(outputs: Any) -> None:
    """Check that tensors in nested lists can hold a result.

    Raises:
        ValueError: elements of one share memory, as ``expand`` makes them.
    """
    for tensor in _flat(outputs):
        is_strided = tensor.layout == torch.strided and not tensor.is_contiguous()
        if is_strided and torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
            raise ValueError(
                f"elements of the output of shape {tuple(tensor.shape)} and strides {tensor.stride()} share "
                "memory, which cannot hold a result: pass a .clone() of it, or make it without expand()"
            )


class CallerStreams:
    """The order between the streams of a caller and those of the thread that makes an operation for it.

    Made on the issuing thread, whose current streams the operation follows. No method but ``followed``, where
    its block raises, makes a thread wait.

    Args:
        devices: that the operation works on.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = devices
        self._before = [torch.cuda.current_stream(device).record_event() for device in devices]
        self._after: dict[torch.device, torch.cuda.Event] = {}

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Run the block on this thread's own streams, behind the work that the caller's had under way.

        At its end the devices may still work on it: ``join`` puts other streams behind. Where the block
        raises, nothing of it is under way any more.
        """
        with ExitStack() as stack:
            for device, event in zip(self.devices, self._before, strict=True):
                stream = own_stream(device)
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
            try:
                yield
            except BaseException:
                wait_here(self.devices)
                raise
            self._after = {device: own_stream(device).record_event() for device in self.devices}

    def join(self) -> None:
        """Put the calling thread's current streams behind all that the block of ``followed`` enqueued.

        To be called when that block has ended.
        """
        for device, event in self._after.items():
            torch.cuda.current_stream(device).wait_event(event)


def wait_here(devices: Sequence[torch.device]) -> None:
    """Block this thread until its current streams have done the work that they have under way."""
    for event in [mark(device) for device in devices]:
        event.synchronize()


def on_host(run: Callable[[Any, Any], None], outputs: Any, inputs: Any) -> None:
    """Call ``run(outputs, inputs)`` with host copies in place of CUDA tensors, and copy the outputs back.

    To be called in a block of ``CallerStreams.followed``. The copies back may be under way when it returns.

    Args:
        run: what reads the inputs and overwrites the outputs.
        outputs: tensors in nested lists. Where ``inputs`` is the same object they are read, too.
        inputs: tensors in nested lists.
    """
    devices = devices_of(outputs, inputs)
    if not devices:
        run(outputs, inputs)
        return
    in_place = outputs is inputs
    host_inputs = _mapped(inputs, begin_copy)
    host_outputs = host_inputs if in_place else _mapped(outputs, pinned_like)
    wait_here(devices)
    run(host_outputs, host_inputs)
    for tensor, copy in zip(_flat(outputs), _flat(host_outputs), strict=True):
        if tensor is not copy:
            to_device(tensor, copy)


def to_device(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Begin to overwrite a CUDA tensor, on the current stream, by values there or in pinned memory.

    Both may be freed at once: their allocators wait for the copying.
    """
    if copy.dtype != tensor.dtype:
        copy = copy.to(tensor.device, non_blocking=True)  # as it is, to be converted there
    overwrite(tensor, copy, non_blocking=True)
    tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _mapped(tensors: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested lists of the same shape, with a copy of each CUDA tensor and all others as they are."""
    if isinstance(tensors, torch.Tensor):
        return copy(tensors) if tensors.is_cuda else tensors
    return [_mapped(part, copy) for part in tensors]


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        for part in tensors:
            yield from _flat(part)


_own = threading.local()


def own_stream(device: torch.device) -> "torch.cuda.Stream":
    """Return this thread's stream on a device.

    Its priority is high, for two reasons: training waits for what runs on it, and it shares no queue of the
    hardware with streams of the usual priority, behind one of which it would wait where that is blocked.
    """
    streams: dict[torch.device, torch.cuda.Stream] = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device, priority=_PRIORITY)  # type: ignore[no-untyped-call]
    return streams[device]
