# SPDX-License-Identifier: Apache-2.0
"""Weir packets as Python values: encode and decode the UDP payload.

For tests, tools and control paths; the data path has its own codec in C (``csrc/``). Both are made from
`weir.wire.definition`.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from weir.wire import definition as d

_FLAGS: Final = sum(d.Flag)
_NO_FLAGS: Final = d.Flag(0)


class CodecError(ValueError):
    """A payload that is no Weir packet, or a packet that cannot be one; the message says what is wrong."""


@dataclass(frozen=True)
class Column:
    """One fused column.

    Attributes:
        block: index of the block this round is about, `NO_BLOCK` when the column is done.
        next: contribution: the sender's next non-zero block; result: the minimum over all workers.
    """

    block: int = d.NO_BLOCK
    next: int = d.NO_BLOCK


@dataclass(frozen=True)
class Packet:
    """A Weir packet.

    Attributes:
        type: contribution, result, or the switch's request to repeat.
        op: how lanes are combined.
        block_log2: log2 of the block size in lanes.
        job, worker, slot, round, included, flags, layer, magnitude, audience, count, check: as in
            `weir.wire.definition.WEIR`.
        columns: all columns of the block size, in order.
        groups: lane group number -> its lanes, unsigned, for those present: 32 each, 128 of a wide packet.
    """

    type: d.PacketType
    op: d.Op
    block_log2: int
    job: int
    worker: int
    slot: int
    round: int
    columns: tuple[Column, ...]
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    included: int = 0
    flags: d.Flag = _NO_FLAGS
    layer: int = 0
    magnitude: int = 0
    audience: int = d.AUDIENCE_ALL
    count: int = 0
    check: int = 0

    def encode(self) -> bytes:
        """Return the UDP payload. Raises CodecError when a value does not fit its field."""
        _check_shape(self.block_log2, self.worker)
        _check_classes(self.layer, self.magnitude)
        wanted = d.columns(self.block_log2)
        if len(self.columns) != wanted:
            raise CodecError(f"{len(self.columns)} columns: blocks of {1 << self.block_log2} take {wanted}")
        if wrong := [g for g in self.groups if not 0 <= g < d.GROUPS]:
            raise CodecError(f"lane groups {wrong}: there are {d.GROUPS}")
        bitmap = sum(1 << group for group in self.groups)
        header = {
            "version": d.VERSION,
            "type": self.type,
            "flags": self.flags,
            "op": self.op,
            "block_log2": self.block_log2,
            "groups": bitmap,
            "job": self.job,
            "worker": self.worker,
            "layer": self.layer,
            "magnitude": self.magnitude,
            "slot": self.slot,
            "round": self.round,
            "included": self.included,
            "audience": self.audience,
            "count": self.count,
            "check": self.check,
        }
        parts = [_pack(d.WEIR, header)]
        parts += [_pack(d.COLUMN, {"block": c.block, "next": c.next}) for c in self.columns]
        lanes = d.group_lanes(self.block_log2)
        parts += [_pack_lanes(group, self.groups[group], lanes) for group in sorted(self.groups)]
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes) -> "Packet":
        """Return the packet in a UDP payload. Raises CodecError for anything that is not exactly one."""
        if len(payload) < d.WEIR.size:
            raise CodecError(f"{len(payload)} bytes: a Weir header has {d.WEIR.size}")
        header = _unpack(d.WEIR, payload[: d.WEIR.size])
        if header["version"] != d.VERSION:
            raise CodecError(f"version {header['version']}: this is version {d.VERSION}")
        if header["flags"] & ~_FLAGS:
            raise CodecError(f"flags {header['flags']:#x}: those of version {d.VERSION} are {_FLAGS:#x}")
        try:
            kind, op = d.PacketType(header["type"]), d.Op(header["op"])
        except ValueError as error:
            raise CodecError(f"type {header['type']}, op {header['op']}: {error}") from None
        _check_shape(header["block_log2"], header["worker"])
        _check_classes(header["layer"], header["magnitude"])
        columns = d.columns(header["block_log2"])
        present = [group for group in range(d.GROUPS) if header["groups"] >> group & 1]
        lanes_at = d.WEIR.size + columns * d.COLUMN.size
        width = 4 * d.group_lanes(header["block_log2"])
        length = lanes_at + len(present) * width
        if len(payload) != length:
            raise CodecError(
                f"{len(payload)} bytes: {columns} columns and {len(present)} lane groups make {length}"
            )
        return cls(
            type=kind,
            op=op,
            block_log2=header["block_log2"],
            job=header["job"],
            worker=header["worker"],
            slot=header["slot"],
            round=header["round"],
            columns=tuple(
                Column(**_unpack(d.COLUMN, payload[at : at + d.COLUMN.size]))
                for at in range(d.WEIR.size, lanes_at, d.COLUMN.size)
            ),
            groups={
                group: _unpack_lanes(payload[lanes_at + i * width : lanes_at + (i + 1) * width])
                for i, group in enumerate(present)
            },
            included=header["included"],
            flags=d.Flag(header["flags"]),
            layer=header["layer"],
            magnitude=header["magnitude"],
            audience=header["audience"],
            count=header["count"],
            check=header["check"],
        )


def _check_shape(block_log2: int, worker: int) -> None:
    if not d.is_block_size(block_log2):
        raise CodecError(
            f"block_log2 {block_log2}: blocks have 2^{d.MIN_BLOCK_LOG2} to 2^{d.MAX_BLOCK_LOG2} lanes, or "
            f"2^{d.WIDE_BLOCK_LOG2}"
        )
    if not 0 <= worker < d.MAX_CHILDREN:
        raise CodecError(f"worker {worker}: a switch has at most {d.MAX_CHILDREN}")


def _check_classes(layer: int, magnitude: int) -> None:
    if not 0 <= layer < d.LAYER_CLASSES:
        raise CodecError(f"layer class {layer}: there are {d.LAYER_CLASSES}")
    if not 0 <= magnitude < d.MAGNITUDE_CLASSES:
        raise CodecError(f"magnitude class {magnitude}: there are {d.MAGNITUDE_CLASSES}")


def _pack(header: d.Header, values: Mapping[str, int]) -> bytes:
    """Return a header's bytes; fields without a value are zero."""
    packed = 0
    for item in header.fields:
        value = values.get(item.name, 0)
        if not 0 <= value < 1 << item.bits:
            raise CodecError(f"{header.name}.{item.name} {value} does not fit {item.bits} bits")
        packed = packed << item.bits | value
    return packed.to_bytes(header.size, "big")


def _unpack(header: d.Header, data: bytes) -> dict[str, int]:
    """Return a header's fields by name."""
    packed = int.from_bytes(data, "big")
    values = {}
    for item in reversed(header.fields):
        values[item.name] = packed & (1 << item.bits) - 1
        packed >>= item.bits
    return values


def _pack_lanes(group: int, lanes: tuple[int, ...], wanted: int) -> bytes:
    if len(lanes) != wanted or not all(0 <= lane < 1 << 32 for lane in lanes):
        raise CodecError(f"lane group {group} needs {wanted} unsigned 32-bit lanes")
    return struct.pack(f"!{len(lanes)}I", *lanes)


def _unpack_lanes(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"!{len(data) // 4}I", data)
