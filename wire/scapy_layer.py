# SPDX-License-Identifier: Apache-2.0
"""Weir as a scapy layer, built at import from `wire.definition`, for tests and tools (not for data paths).

Example::

    frame = Ether() / IP(dst="10.0.0.254") / UDP(sport=9000) / Weir(
        job=7, worker=1, round=1, groups=0b1, columns=[WeirColumn(block=3, next=9)], lanes=[0] * 32)
    Ether(bytes(frame))[Weir].columns[0].next    # 9

Nothing is filled in: `groups`, `columns` and `lanes` are written as they are given, so that malformed packets
can be made. Scapy's own names win where they clash: read a field that clashes with `getfieldval`.
"""

from enum import IntEnum
from typing import Any, ClassVar

from scapy.fields import BitEnumField, BitField, FieldListField, IntField, PacketListField
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers

from weir.wire import definition as d

_ENUMS: dict[d.Header, dict[str, type[IntEnum]]] = {
    d.WEIR: {"type": d.PacketType, "op": d.Op},
    d.FLOW: {"type": d.FlowType},
    d.COLUMN: {},
    d.WEIGHTS: {"type": d.WeightsType},
}
_DEFAULTS = {
    "version": d.VERSION,
    "type": d.PacketType.CONTRIBUTION,
    "op": d.Op.ADD,
    "block_log2": d.MAX_BLOCK_LOG2,
    "round": 1,
    "audience": d.AUDIENCE_ALL,
    "block": d.NO_BLOCK,
    "next": d.NO_BLOCK,
}


def _fields(header: d.Header) -> list[Any]:
    """Return the scapy fields of a header, in order."""
    made: list[Any] = []
    for field in header.fields:
        default = _DEFAULTS.get(field.name, 0)
        if field.name in _ENUMS[header]:
            names = {member.value: member.name for member in _ENUMS[header][field.name]}
            made.append(BitEnumField(field.name, default, field.bits, names))
        else:
            made.append(BitField(field.name, default, field.bits))
    return made


def _column_count(weir: Any) -> int:
    """Return the number of columns that follow a header, or none when its block size makes no sense."""
    return d.columns(weir.block_log2) if d.is_block_size(weir.block_log2) else 0


def _lane_count(weir: Any) -> int:
    """Return the number of lanes that follow the columns."""
    return d.group_lanes(weir.block_log2) * int(weir.groups).bit_count()


class WeirColumn(Packet):  # type: ignore[misc]
    """One fused column: the block requested and the next one announced."""

    name = "WeirColumn"
    fields_desc: ClassVar[list[Any]] = _fields(d.COLUMN)

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Return what follows as the list's, not this column's."""
        return b"", s


class Weir(Packet):  # type: ignore[misc]
    """A Weir packet: header, columns, lanes of all groups present one after the other."""

    name = "Weir"
    fields_desc: ClassVar[list[Any]] = [
        *_fields(d.WEIR),
        PacketListField("columns", [], WeirColumn, count_from=_column_count),
        FieldListField("lanes", [], IntField("lane", 0), count_from=_lane_count, max_count=d.WIDE_LANES),
    ]

    def mysummary(self) -> str:
        """Return one line for `summary()`."""
        head: str = self.sprintf("Weir %Weir.type% %Weir.op% job %Weir.job% worker %Weir.worker%")
        blocks = [column.block for column in self.columns]
        return f"{head} slot {self.slot} round {self.round} blocks {blocks}"


class WeirFlow(Packet):  # type: ignore[misc]
    """A flow packet's header; what follows is its payload."""

    name = "WeirFlow"
    fields_desc: ClassVar[list[Any]] = _fields(d.FLOW)

    def mysummary(self) -> str:
        """Return one line for `summary()`."""
        summary: str = self.sprintf(
            "WeirFlow %WeirFlow.type% flow %WeirFlow.flow% tensor %WeirFlow.tensor% index %WeirFlow.index%"
        )
        return summary


class WeirWeights(Packet):  # type: ignore[misc]
    """The header of a packet of published weights; what follows is its payload."""

    name = "WeirWeights"
    fields_desc: ClassVar[list[Any]] = _fields(d.WEIGHTS)

    def mysummary(self) -> str:
        """Return one line for `summary()`."""
        summary: str = self.sprintf(
            "WeirWeights %WeirWeights.type% version %WeirWeights.number% index %WeirWeights.index%"
        )
        return summary


for _port, _layer in ((d.UDP_PORT, Weir), (d.FLOW_PORT, WeirFlow), (d.WEIGHTS_PORT, WeirWeights)):
    bind_layers(UDP, _layer, dport=_port)
    bind_bottom_up(UDP, _layer, sport=_port)
