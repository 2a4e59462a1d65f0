# SPDX-License-Identifier: Apache-2.0
"""A decoder of its own for captures: nothing of what hosts or switches decode with is in it.

Where fields are is scapy's knowledge: of Ethernet, IPv4 and UDP, and of Weir's headers as the layers in
`weir.wire.scapy_layer`, which people use to look into packets. What fields may hold is said here once more,
from protocol.md and flows.md, so a mistake of the hosts' codec is none of the audit's.
"""

import struct
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any, Final, NamedTuple

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

from weir.pcap.layout import Layout
from weir.pcap.packets import Checksum, Column, Datagram, FlowPacket, SlotPacket
from weir.wire import definition as d
from weir.wire.scapy_layer import Weir, WeirColumn, WeirFlow

_ETHER, _VLAN, _IP, _UDP = Layout(Ether), Layout(Dot1Q), Layout(IP), Layout(UDP)
_WEIR, _COLUMN, _FLOW = Layout(Weir), Layout(WeirColumn), Layout(WeirFlow)

_VLAN_TYPES: Final = (0x8100, 0x88A8)
_IPV4_TYPE, _UDP_PROTOCOL, _MORE_FRAGMENTS = 0x0800, 17, 1
_PORTS: Final = (d.UDP_PORT, d.FLOW_PORT)
_ONES: Final = 0xFFFF
_PLAIN: Final = _ETHER.size + _IP.size + _UDP.size  # headers without tags and options
_PLAIN_START: Final = b"\x08\x00\x45"
_LEAST_FRAME: Final = 60  # Ethernet fills shorter frames up
_FRAME_CHECK: Final = 4  # a capture may hold it

_TYPES: Final = {int(kind): kind for kind in d.PacketType}
_OPS: Final = {int(op): op for op in d.Op}
_FLOW_TYPES: Final = {int(kind): kind for kind in d.FlowType}
_FLAGS: Final = int(sum(d.Flag))
_CHUNK_FLAGS: Final = int(d.Flag.PROTECTED | d.Flag.TRIMMED)
_FLOW_FLAGS: Final = {
    d.FlowType.CHUNK: _CHUNK_FLAGS,
    d.FlowType.PROBE: _CHUNK_FLAGS,
    d.FlowType.BITMAP: _CHUNK_FLAGS | int(d.Flag.CONGESTED),
    d.FlowType.STOP: _CHUNK_FLAGS | int(d.Flag.CONGESTED),
}
_LANE, _TERM, _RANGE = 4, 8, 8  # bytes of a lane, of an account's terms, and of what stands before these


class ReadError(ValueError):
    """The bytes are no Weir packet; the message says why."""


# -- the envelope -----------------------------------------------------------------------------------------


class _Headers(NamedTuple):
    """Headers around a payload. at: where the payload begins; pseudo: sum of UDP's pseudo header."""

    ether: dict[str, Any]
    ip: dict[str, Any]
    udp: dict[str, Any]
    at: int
    checksum: str
    pseudo: int
    macs: tuple[str, str]
    addresses: tuple[str, str]


def datagram(data: bytes, length: int) -> Datagram | None:
    """Return the datagram in an Ethernet frame from or to one of Weir's ports; None of any other frame.

    length: of the frame on the link, of which ``data`` may be the beginning alone.
    """
    try:
        headers = _headers(data[:_PLAIN] if data[12:15] == _PLAIN_START else data)
    except struct.error:
        return None
    if headers is None:
        return None
    ip, udp = headers.ip, headers.udp
    whole = len(data) >= length
    end = min(headers.at + udp["len"] - _UDP.size, len(data))
    payload = data[headers.at : max(end, headers.at)]
    return Datagram(
        headers.macs[0],
        headers.macs[1],
        headers.addresses[0],
        headers.addresses[1],
        udp["sport"],
        udp["dport"],
        dscp=ip["tos"] >> 2,
        ecn=ip["tos"] & 3,
        ttl=ip["ttl"],
        flow=d.UDP_PORT not in (udp["sport"], udp["dport"]),
        checksum=headers.checksum,
        udp_checksum=_udp_checksum(headers, payload, whole),
        length=_lengths(headers, length),
        whole=whole,
        payload=payload,
    )


@lru_cache(4096)
def _headers(data: bytes) -> _Headers | None:
    """Return the headers that a frame begins with; None when they are not of IPv4, UDP and Weir's ports.

    The headers of a worker's packets are the same again and again; reading the same bytes once is enough.
    """
    ether = _ETHER.read(data)
    at, kind = _ETHER.size, ether["type"]
    while kind in _VLAN_TYPES:
        kind, at = _VLAN.read(data, at)["type"], at + _VLAN.size
    if kind != _IPV4_TYPE:
        return None
    ip = _IP.read(data, at)
    size = 4 * ip["ihl"]
    if ip["version"] != 4 or size < _IP.size or ip["proto"] != _UDP_PROTOCOL or ip["frag"]:
        return None
    udp = _UDP.read(data, at + size)
    if udp["sport"] not in _PORTS and udp["dport"] not in _PORTS:
        return None
    source, destination = ip["src"].to_bytes(4, "big"), ip["dst"].to_bytes(4, "big")
    header = data[at : at + size]
    right = int.from_bytes(header, "big") % _ONES == 0
    computed = _ONES - (int.from_bytes(header[:10] + header[12:], "big") % _ONES)
    wrong = "" if right else f"IPv4's is {ip['chksum']:#06x} and should be {computed:#06x}"
    return _Headers(
        ether,
        {**ip, "size": size, "at": at},
        udp,
        at + size + _UDP.size,
        wrong,
        int.from_bytes(source + destination, "big") % _ONES + _UDP_PROTOCOL + udp["len"],
        (ether["src"].hex(":"), ether["dst"].hex(":")),
        (str(IPv4Address(source)), str(IPv4Address(destination))),
    )


def _udp_checksum(headers: _Headers, payload: bytes, whole: bool) -> Checksum:
    """Return what is the matter with the UDP checksum: RFC 768, and what Linux leaves to a device.

    Until a device fills it in, the field holds the sum of the pseudo header.
    """
    udp = headers.udp
    there = udp["chksum"]
    if there == 0:
        return Checksum.ABSENT
    if there == (headers.pseudo % _ONES or _ONES):
        return Checksum.PARTIAL
    if not whole or len(payload) != udp["len"] - _UDP.size:
        return Checksum.RIGHT  # nobody can tell
    words = int.from_bytes(payload + b"\0" * (len(payload) % 2), "big") % _ONES
    total = headers.pseudo + udp["sport"] + udp["dport"] + udp["len"] + there + words
    return Checksum.RIGHT if total % _ONES == 0 else Checksum.WRONG


def _lengths(headers: _Headers, length: int) -> str:
    """Return "" or what is wrong with a packet's lengths."""
    ip, udp = headers.ip, headers.udp
    left = ip["len"] - ip["size"]
    if ip["flags"] & _MORE_FRAGMENTS:
        return "a fragment: Weir's packets travel whole"
    if udp["len"] != left:
        return f"UDP's length is {udp['len']}, and IPv4's total length, {ip['len']}, leaves it {left}"
    end = ip["at"] + ip["len"]
    if end > length:
        return f"IPv4's total length is {ip['len']}, and the frame has {length - ip['at']} bytes for it"
    if length > max(end, _LEAST_FRAME) + _FRAME_CHECK:
        return f"{length - end} bytes follow the IPv4 packet in its frame"
    return ""


# -- the slot protocol ------------------------------------------------------------------------------------


def slot_packets(payload: bytes) -> list[SlotPacket]:
    """Return the packets in a datagram: one, or more of a train that a device is to cut (UDP_SEGMENT).

    Raises:
        ReadError: it holds anything else.
    """
    size = slot_packet_size(payload)
    if len(payload) <= size:
        return [_slot_packet(payload, size)]
    try:
        return [_slot_packet(part, slot_packet_size(part)) for part in _cut(payload, size)]
    except ReadError:
        raise ReadError(_lengths_of_slot(payload, size)) from None


def slot_packet_size(payload: bytes) -> int:
    """Return the length that a packet's header says it has, in bytes. Raises ReadError."""
    if len(payload) < _WEIR.size:
        raise ReadError(f"{len(payload)} bytes: a Weir header has {_WEIR.size}")
    fields = _WEIR.read(payload)
    log2 = fields["block_log2"]
    if fields["version"] != d.VERSION:
        raise ReadError(f"version {fields['version']}: this is version {d.VERSION}")
    if not d.is_block_size(log2):
        raise ReadError(f"block_log2 {log2}: there are no such blocks")
    groups: int = fields["groups"].bit_count()
    return _WEIR.size + d.columns(log2) * _COLUMN.size + groups * d.group_lanes(log2) * _LANE


def _slot_packet(payload: bytes, size: int) -> SlotPacket:
    fields = _WEIR.read(payload)
    log2, kind, op = fields["block_log2"], _TYPES.get(fields["type"]), _OPS.get(fields["op"])
    if kind is None:
        raise ReadError(f"type {fields['type']}: there is no such packet")
    if op is None:
        raise ReadError(f"op {fields['op']}: there is no such operator")
    if fields["flags"] & ~_FLAGS:
        raise ReadError(f"flags {fields['flags']:#x}: those of version {d.VERSION} are {_FLAGS:#x}")
    if fields["worker"] >= d.MAX_CHILDREN:
        raise ReadError(f"worker {fields['worker']}: a switch has at most {d.MAX_CHILDREN}")
    _check_classes(fields)
    if log2 == d.WIDE_BLOCK_LOG2 and (op is not d.Op.ADD or fields["groups"] not in (0, 0xFF)):
        raise ReadError(f"a wide packet with op {op.name} and lane groups {fields['groups']:#x}")
    if len(payload) != size:
        raise ReadError(_lengths_of_slot(payload, size))
    columns, at = [], _WEIR.size
    for _ in range(d.columns(log2)):
        columns.append(Column(**_COLUMN.read(payload, at)))
        at += _COLUMN.size
    return SlotPacket(
        kind,
        fields["flags"],
        op,
        log2,
        fields["groups"],
        fields["job"],
        fields["worker"],
        fields["layer"],
        fields["magnitude"],
        fields["slot"],
        fields["round"],
        fields["included"],
        fields["audience"],
        fields["count"],
        fields["check"],
        tuple(columns),
        payload[at:],
    )


def _lengths_of_slot(payload: bytes, size: int) -> str:
    fields = _WEIR.read(payload)
    columns, groups = d.columns(fields["block_log2"]), fields["groups"].bit_count()
    return f"{len(payload)} bytes: {columns} columns and {groups} lane groups make {size}"


def _check_classes(fields: dict[str, Any]) -> None:
    if fields["layer"] >= d.LAYER_CLASSES or fields["magnitude"] >= d.MAGNITUDE_CLASSES:
        raise ReadError(f"layer class {fields['layer']}, magnitude class {fields['magnitude']}: none such")


def _cut(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]


# -- flows ------------------------------------------------------------------------------------------------


def flow_packets(payload: bytes) -> list[FlowPacket]:
    """Return the packets in a datagram: one, or more of a train that a device is to cut (UDP_SEGMENT).

    Chunks say nothing of their length: in a train the next one begins where the flow's number is again.

    Raises:
        ReadError: it holds anything else.
    """
    flow = payload[4:8]
    at = payload.find(flow, _FLOW.size + 4) - 4 if len(payload) >= _FLOW.size else -1
    if at >= _FLOW.size and payload[at : at + 1] == payload[:1]:
        try:
            return [_flow_packet(part) for part in _cut(payload, at)]
        except ReadError:
            pass  # the number is in the data of one chunk
    return [_flow_packet(payload)]


def _flow_packet(payload: bytes) -> FlowPacket:
    if len(payload) < _FLOW.size:
        raise ReadError(f"{len(payload)} bytes: a flow header has {_FLOW.size}")
    fields = _FLOW.read(payload)
    kind = _FLOW_TYPES.get(fields["type"])
    if fields["version"] != d.VERSION:
        raise ReadError(f"version {fields['version']}: this is version {d.VERSION}")
    if kind is None:
        raise ReadError(f"type {fields['type']}: flows have no such packet")
    if fields["flags"] & ~_FLOW_FLAGS[kind]:
        raise ReadError(f"flags {fields['flags']:#x}: not of a {kind.name.lower()}")
    _check_classes(fields)
    if not fields["count"] or not fields["tensor"]:
        raise ReadError(f"tensor {fields['tensor']} of {fields['count']} chunks: both begin with 1")
    packet = FlowPacket(
        kind,
        fields["flags"],
        fields["layer"],
        fields["magnitude"],
        fields["worker"],
        fields["flow"],
        fields["tensor"],
        fields["index"],
        fields["count"],
        fields["first"],
        payload[_FLOW.size :],
    )
    if wrong := _wrong_data(packet):
        raise ReadError(f"{kind.name.lower()}, {packet.name}: {wrong}")
    return packet


def _wrong_data(packet: FlowPacket) -> str:
    """Return "" or what is wrong with what follows a flow header."""
    size, left = len(packet.data), packet.count - packet.first
    match packet.type:
        case d.FlowType.CHUNK:
            if packet.index >= packet.count:
                return f"index {packet.index} of {packet.count}"
            if size % _LANE or bool(size) == packet.trimmed:
                return f"{size} bytes of data"
        case d.FlowType.PROBE:
            if not packet.index:
                return "number 0: they begin with 1"
            if size or not packet.trimmed:
                return _wrong_terms(packet, size)
        case _:
            if not size:
                bare = packet.trimmed or (packet.type is d.FlowType.STOP and not packet.first)
                return "" if bare else "no bits"
            if packet.trimmed and packet.type is d.FlowType.STOP:
                return "bits, although they were cut off"
            if left <= 0 or size > -(-left // 8):
                return f"{size} bytes of bits from chunk {packet.first} on, of {packet.count}"
            if 8 * size > left and packet.data[-1] >> left % 8:
                return "bits behind the last chunk"
    return ""


def _wrong_terms(packet: FlowPacket, size: int) -> str:
    if packet.trimmed or size < _RANGE + _TERM or (size - _RANGE) % _TERM:
        return f"{size} bytes of terms"
    end, final = struct.unpack_from("!II", packet.data)
    if not packet.first <= end <= packet.count or final > 1:
        return f"chunks {packet.first} to {end} of {packet.count}, final {final}"
    return ""
