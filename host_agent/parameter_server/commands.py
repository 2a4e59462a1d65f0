# SPDX-License-Identifier: Apache-2.0
"""Commands: what the workers and servers of a job do next, as worker 0 says to all of them in one packet."""

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from softp4.native.json_text import parse_object
from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes

COMMAND_LANES: Final = 128
_HEAD: Final = 2  # lanes: kind, bytes of the body
_INLINE: Final = (COMMAND_LANES - _HEAD) * LANE_BYTES


class Kind(enum.IntEnum):
    """The kinds of commands: a step of training, the servers' state to everybody, a state to the servers, the
    end, what filters hold back to everybody.
    """

    STEP = 1
    STATE = 2
    LOAD = 3
    END = 4
    FLUSH = 5


@dataclass(frozen=True)
class Command:
    """A command. body: plain values; of a step each group's hyper-parameters, where some have changed."""

    kind: Kind
    body: dict[str, Any] = field(default_factory=dict)


def pack(command: Command) -> tuple[Lanes, Lanes]:
    """Return a command as the lanes of a packet, and further ones for what of it does not fit there."""
    body = json.dumps(command.body).encode() if command.body else b""
    padded = body.ljust(_INLINE, b"\0")
    padded += b"\0" * (-len(padded) % LANE_BYTES)
    first: Lanes = np.empty(COMMAND_LANES, np.uint32)
    first[:_HEAD] = command.kind, len(body)
    first[_HEAD:] = np.frombuffer(padded[:_INLINE], np.uint32)
    return first, np.frombuffer(padded[_INLINE:], np.uint32).copy()


def rest_of(first: Lanes) -> int:
    """Return how many lanes follow those of the first packet."""
    return -(-max(0, int(first[1]) - _INLINE) // LANE_BYTES)


def unpack(first: Lanes, rest: Lanes) -> Command:
    """Return the command that ``pack`` made lanes of. ValueError where they are none."""
    body = (first[_HEAD:].tobytes() + rest.tobytes())[: int(first[1])]
    return Command(Kind(int(first[0])), parse_object(body) if body else {})
