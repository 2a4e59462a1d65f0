# SPDX-License-Identifier: Apache-2.0
"""States that ranks send to each other: tensors and plain values as bytes, with a checksum behind them.

So all members of a group come to one state, whoever left or joined: that of the rank that made most steps.
"""

import io
import zlib
from collections.abc import Mapping
from typing import Any, Final

import torch

from weir.host_agent.collectives.collectives import Collectives
from weir.host_agent.collectives.tensor_memory import array_of

_CHECKSUM_BYTES: Final = 4


def pack_state(state: Mapping[str, Any]) -> torch.Tensor:
    """Return a state as bytes, uint8. state: what torch.load takes with ``weights_only``."""
    saved = io.BytesIO()
    torch.save(dict(state), saved)
    saved.write(_checksum(saved.getbuffer()))
    return torch.frombuffer(bytearray(saved.getbuffer()), dtype=torch.uint8)


def checksum_of(data: torch.Tensor) -> int:
    """Return the checksum of a state that ``pack_state`` made: of another state it is another."""
    return int.from_bytes(array_of(data[-_CHECKSUM_BYTES:]).tobytes(), "little")


def unpack_state(data: torch.Tensor) -> dict[str, Any]:
    """Return the state of ``pack_state``. Raises ValueError for other bytes."""
    content = memoryview(array_of(data).tobytes())
    body, found = content[:-_CHECKSUM_BYTES], bytes(content[-_CHECKSUM_BYTES:])
    if len(content) < _CHECKSUM_BYTES or found != _checksum(body):
        raise ValueError(f"a state of {len(content)} bytes has come damaged: its checksum does not fit")
    loaded: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True)
    return loaded


def _checksum(data: memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def newest(collectives: Collectives, step: int, state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state of the rank that has made most steps, the lowest one on a tie; None where it is this
    one's.

    state: tensors and plain values, as torch.load takes with ``weights_only``. To be called on all ranks at
    once; where their states are the same they exchange a few numbers, no more.
    """
    communicator = collectives.communicator
    own = pack_state(state)
    mine = torch.tensor([step, own.numel(), checksum_of(own)])
    everyone = [torch.empty_like(mine) for _ in range(communicator.size)]
    collectives.all_gather(everyone, mine)
    steps = [int(numbers[0]) for numbers in everyone]
    root = steps.index(max(steps))
    if all(torch.equal(numbers, mine) for numbers in everyone):
        return None
    data = own if root == communicator.rank else torch.empty(int(everyone[root][1]), dtype=torch.uint8)
    collectives.broadcast(data, root)
    if root == communicator.rank:
        return None
    return unpack_state(data)
