# SPDX-License-Identifier: Apache-2.0
"""Results by hand: what a switch would answer, and variations of it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.slot_transport import SlotTransport
from weir.wire.definition import GROUP_LANES, Flag, Op, PacketType


def packets(datagrams: Iterable[Datagram]) -> list[Packet]:
    return [Packet.decode(datagram.payload) for datagram in datagrams]


def result(contribution: Packet, **changes: Any) -> Packet:
    """Return the result of a round in which the sender's contribution is all there is, but for
    ``changes``; unless they say so, ``count`` is that of the included.
    """
    fields: dict[str, Any] = {
        "type": PacketType.RESULT,
        "flags": Flag(0),
        "included": 1 << contribution.worker if contribution.groups else 0,
    } | changes
    return replace(contribution, **({"count": fields["included"].bit_count()} | fields))


def answer_all(transport: SlotTransport, now: int = 0) -> list[Packet]:
    """Run a reduce of one worker to its end; returns the contributions in order."""
    seen = []
    while not transport.done:
        for packet in packets(transport.poll(now)[0]):
            seen.append(packet)
            transport.on_packet(result(packet).encode(), now)
    return seen


def groups_of(lanes: npt.NDArray[np.uint32], first_group: int = 0) -> dict[int, tuple[int, ...]]:
    """Return lanes as a packet's groups, from ``first_group`` on."""
    rows = lanes.reshape(-1, GROUP_LANES)
    return {first_group + i: tuple(int(lane) for lane in row) for i, row in enumerate(rows)}


def combine(op: Op, vectors: Iterable[npt.NDArray[np.uint32]]) -> npt.NDArray[np.uint32]:
    """Return the exact reference: what a reduce of these vectors must give."""
    stacked = np.stack(list(vectors))
    if op is Op.ADD:
        return np.add.reduce(stacked, axis=0, dtype=np.uint32)
    return (np.maximum if op is Op.MAX else np.bitwise_or).reduce(stacked, axis=0)
