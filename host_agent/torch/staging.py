# SPDX-License-Identifier: Apache-2.0
"""Device tensors in collectives: host copies that the network works on, and the streams that make them.

The switch adds up what is in host memory, so a CUDA tensor goes there and back: to pinned memory and on a
stream of its own, behind what the caller's stream had under way, so that neither waits for work that was
issued later. This is the order in which torch's own Gloo group does it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def devices_of(*tensors: Any) -> list[torch.device]:
    """Return the CUDA devices that tensors in nested lists are on, each once.

    Raises:
        TypeError: a tensor is sparse, or on a device that is neither the host nor CUDA's.
    """
    found: dict[torch.device, None] = {}
    for tensor in _flat(tensors):
        if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
            raise TypeError(
                f"the weir backend works on dense CPU and CUDA tensors, this one is {tensor.layout} on "
                f"{tensor.device}: copy it with .cpu(), or make it dense (sparse=False in an Embedding)"
            )
        if tensor.is_cuda:
            found[tensor.device] = None
    return list(found)


class CallerStreams:
    """The work that the issuing thread's streams have under way, for another thread to wait for."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = devices
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Run the block on this thread's own streams, behind what the caller's had under way.

        At its end all that it began on a device is done: nobody needs to wait for these streams.
        """
        with ExitStack() as stack:
            for device, event in zip(self.devices, self._events, strict=True):
                stream = _own_stream(device)
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
                stack.callback(stream.synchronize)
            yield


def on_host(run: Callable[[Any, Any], None], outputs: Any, inputs: Any) -> None:
    """Call ``run(outputs, inputs)`` with host copies in place of CUDA tensors, and copy the outputs back.

    To be called in a block of ``CallerStreams.followed``, at whose end the outputs are on their devices.

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
    host_inputs = _copied(inputs)
    host_outputs = host_inputs if in_place else _mapped(outputs, _pinned_like)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    run(host_outputs, host_inputs)
    for tensor, copy in zip(_flat(outputs), _flat(host_outputs), strict=True):
        if tensor is not copy:
            tensor.copy_(copy, non_blocking=True)


def _copied(tensors: Any) -> Any:
    return _mapped(tensors, lambda tensor: _pinned_like(tensor).copy_(tensor, non_blocking=True))


def _pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


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


def _own_stream(device: torch.device) -> "torch.cuda.Stream":
    """Return this thread's stream on a device."""
    streams: dict[torch.device, torch.cuda.Stream] = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]
