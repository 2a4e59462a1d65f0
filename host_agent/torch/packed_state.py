# SPDX-License-Identifier: Apache-2.0
"""States that ranks send to each other: tensors and plain values as bytes, with a checksum behind them."""

import io
import zlib
from collections.abc import Mapping
from typing import Any, Final

import torch

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
