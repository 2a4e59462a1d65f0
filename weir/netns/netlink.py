# SPDX-License-Identifier: Apache-2.0
"""Network interfaces of one namespace, made and changed over rtnetlink: what ``ip`` and ``tc`` would do.

Of rtnetlink(7) it speaks as much as labs need: veth pairs and bridges, addresses, neighbours, one gateway,
and token buckets. So a machine needs neither iproute2 nor a library.
"""

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from ipaddress import IPv4Address, IPv4Interface
from typing import Final, Self

_ROOT: Final = 0xFFFFFFFF  # where an interface's queueing discipline hangs
_BUCKET: Final = 0x10000  # handle of a token bucket; one more: its only class, where its queue hangs
_ETHERNET: Final = 1  # the link layer of its rate
_PERMANENT: Final = 0x80  # a neighbour that nobody asks for again
_MAIN_TABLE, _STATIC, _UNICAST = 254, 4, 1  # of a route
_UP: Final = 1
_NESTED: Final = 0x8000
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_ERROR, _ERROR_WORDS = 2, 1


class _Do(IntEnum):
    """Kinds of requests."""

    NEW_LINK = 16
    DELETE_LINK = 17
    GET_LINK = 18
    NEW_ADDRESS = 20
    NEW_ROUTE = 24
    NEW_NEIGHBOUR = 28
    NEW_DISCIPLINE = 36
    DELETE_DISCIPLINE = 37


class _How(IntFlag):
    """Flags of requests."""

    REQUEST = 1
    ACKNOWLEDGE = 4
    REPLACE = 0x100
    EXCLUSIVE = 0x200
    CREATE = 0x400
    ADD = CREATE | EXCLUSIVE
    PUT = CREATE | REPLACE


class _Link(IntEnum):
    """Attributes of interfaces (IFLA_...), of their kind (IFLA_INFO_...), of veth pairs and of XDP."""

    ADDRESS = 1
    NAME = 3
    MTU = 4
    MASTER = 10
    TX_QUEUE_LENGTH = 13
    INFO = 18
    STATISTICS = 23
    NAMESPACE_FD = 28
    TX_QUEUES = 31
    RX_QUEUES = 32
    XDP = 43
    INFO_KIND = 1
    INFO_DATA = 2
    VETH_PEER = 1
    XDP_ATTACHED = 2


class _Ip(IntEnum):
    """Attributes of addresses (IFA_...), neighbours (NDA_...) and routes (RTA_...)."""

    ADDRESS = 1
    LOCAL = 2
    NEIGHBOUR = 1
    NEIGHBOUR_MAC = 2
    INTERFACE = 4
    GATEWAY = 5


class _Tc(IntEnum):
    """Attributes of queueing disciplines (TCA_...) and of the token bucket filter (TCA_TBF_...)."""

    KIND = 1
    OPTIONS = 2
    PARAMETERS = 1
    RATE = 4
    BURST = 6


class NetlinkError(OSError):
    """The kernel refused a change of its network; the message holds what and why."""


@dataclass(frozen=True)
class Link:
    """An interface as the kernel describes it.

    xdp: an XDP program is attached to it. sent, sent_bytes: frames that it has sent, a train of segments
    counting as one, and their bytes.
    """

    index: int
    up: bool
    mtu: int
    mac: str
    xdp: bool
    sent: int
    sent_bytes: int


@dataclass(frozen=True)
class TokenBucket:
    """A rate in bit/s; bytes that may leave at once; seconds for which packets may queue.

    The burst holds a train of 64 KiB of TCP segments with all their headers: a longer train than that the
    kernel cuts into packets, and every one of them costs what the train did.
    """

    rate_bps: int
    burst: int = 96 * 1024
    latency_s: float = 0.05

    @property
    def limit(self) -> int:
        """Return how many bytes may queue."""
        return int(self.rate_bps / 8 * self.latency_s) + self.burst


class Links:
    """The interfaces of the network namespace that it was made in; any thread may use it from any other.

    All methods raise NetlinkError when the kernel refuses.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the socket; the interfaces stay."""
        self._socket.close()

    def add_veth(self, name: str, peer: str, *, there: int | None = None, queues: int = 1) -> None:
        """Make a pair of joined interfaces, both down.

        Args:
            name: of the end in this namespace.
            peer: name of the other end.
            there: an open file of the namespace that gets the other end; None: this one.
            queues: receive and transmit queues of either end.
        """
        counts = _number(_Link.TX_QUEUES, queues) + _number(_Link.RX_QUEUES, queues)
        far = _interface() + _text(_Link.NAME, peer) + counts
        far += _number(_Link.NAMESPACE_FD, there) if there is not None else b""
        kind = _text(_Link.INFO_KIND, "veth") + _nest(_Link.INFO_DATA, _nest(_Link.VETH_PEER, far))
        body = _interface() + _text(_Link.NAME, name) + counts + _nest(_Link.INFO, kind)
        self._ask(_Do.NEW_LINK, _How.ADD, body, f"add veth {name} - {peer}")

    def add_bridge(self, name: str) -> None:
        """Make a bridge, which forwards between the interfaces that are given it as their ``bridge``."""
        body = _interface() + _text(_Link.NAME, name) + _nest(_Link.INFO, _text(_Link.INFO_KIND, "bridge"))
        self._ask(_Do.NEW_LINK, _How.ADD, body, f"add bridge {name}")

    def set(
        self,
        name: str,
        *,
        mac: str | None = None,
        mtu: int | None = None,
        bridge: str | None = None,
        up: bool | None = None,
    ) -> None:
        """Change what is given of an interface; its state last."""
        body = b""
        if mac is not None:
            body += _attribute(_Link.ADDRESS, _mac(mac))
        if mtu is not None:
            body += _number(_Link.MTU, mtu)
        if bridge is not None:
            body += _number(_Link.MASTER, self.find(bridge).index)
        words = f"change {name}"
        if body:
            self._ask(_Do.NEW_LINK, _How(0), _interface() + _text(_Link.NAME, name) + body, words)
        if up is not None:
            state = struct.pack("=BxHiII", 0, 0, 0, _UP if up else 0, _UP)
            self._ask(_Do.NEW_LINK, _How(0), state + _text(_Link.NAME, name), words)

    def remove(self, name: str) -> None:
        """Remove an interface, and the other end of a pair with it."""
        self._ask(_Do.DELETE_LINK, _How(0), _interface() + _text(_Link.NAME, name), f"remove {name}")

    def find(self, name: str) -> Link:
        """Return an interface by name."""
        answer = self._ask(_Do.GET_LINK, _How(0), _interface() + _text(_Link.NAME, name), f"find {name}")
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", answer)
        found = dict(_attributes(answer[16:]))
        _, sent, _, sent_bytes = struct.unpack_from("=4Q", found[_Link.STATISTICS])
        return Link(
            index,
            up=bool(flags & _UP),
            mtu=struct.unpack("=I", found[_Link.MTU])[0],
            mac=found[_Link.ADDRESS].hex(":"),
            xdp=any(dict(_attributes(found.get(_Link.XDP, b""))).get(_Link.XDP_ATTACHED, b"")),
            sent=sent,
            sent_bytes=sent_bytes,
        )

    def add_address(self, name: str, address: str) -> None:
        """Give an interface an IPv4 address with its prefix, such as "10.0.0.1/24"."""
        own = IPv4Interface(address)
        body = struct.pack("=BBBBI", socket.AF_INET, own.network.prefixlen, 0, 0, self.find(name).index)
        body += _attribute(_Ip.LOCAL, own.ip.packed) + _attribute(_Ip.ADDRESS, own.ip.packed)
        self._ask(_Do.NEW_ADDRESS, _How.ADD, body, f"add {address} to {name}")

    def set_neighbour(self, name: str, address: str, mac: str) -> None:
        """Say which MAC address an IPv4 address behind an interface has, so that no ARP asks."""
        body = struct.pack("=BxHiHBB", socket.AF_INET, 0, self.find(name).index, _PERMANENT, 0, 0)
        body += _attribute(_Ip.NEIGHBOUR, IPv4Address(address).packed) + _attribute(
            _Ip.NEIGHBOUR_MAC, _mac(mac)
        )
        self._ask(_Do.NEW_NEIGHBOUR, _How.PUT, body, f"set neighbour {address} of {name}")

    def set_gateway(self, name: str, address: str) -> None:
        """Send what is for no other network to an IPv4 address behind an interface."""
        body = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _STATIC, 0, _UNICAST, 0)
        body += _attribute(_Ip.GATEWAY, IPv4Address(address).packed)
        body += _number(_Ip.INTERFACE, self.find(name).index)
        self._ask(_Do.NEW_ROUTE, _How.PUT, body, f"set gateway {address} of {name}")

    def shape(self, name: str, bucket: TokenBucket) -> None:
        """Let an interface send no faster than a token bucket; what finds its queue full is dropped."""
        rate = bucket.rate_bps // 8
        # A tc_ratespec for the rate, one for a peak rate, of none; limit; two that are unused.
        parameters = struct.pack(
            "=BBHhHI12xIII", 0, _ETHERNET, 0, 0, 0, min(rate, 2**32 - 1), bucket.limit, 0, 0
        )
        options = _attribute(_Tc.PARAMETERS, parameters) + _number(_Tc.BURST, bucket.burst)
        options += _attribute(_Tc.RATE, struct.pack("=Q", rate))
        body = self._discipline(name, _BUCKET) + _text(_Tc.KIND, "tbf") + _nest(_Tc.OPTIONS, options)
        self._ask(_Do.NEW_DISCIPLINE, _How.PUT, body, f"shape {name} with a token bucket")

    def prioritise(self, name: str, length: int) -> None:
        """Give a token bucket a queue of that many frames for each of three priorities, best ones first."""
        body = _interface() + _text(_Link.NAME, name) + _number(_Link.TX_QUEUE_LENGTH, length)
        self._ask(_Do.NEW_LINK, _How(0), body, f"change {name}")
        body = self._discipline(name, parent=_BUCKET + 1) + _text(_Tc.KIND, "pfifo_fast")
        self._ask(_Do.NEW_DISCIPLINE, _How.PUT, body, f"give {name} queues by priority")

    def unshape(self, name: str) -> None:
        """Take an interface's token bucket away."""
        self._ask(
            _Do.DELETE_DISCIPLINE, _How(0), self._discipline(name), f"remove the token bucket of {name}"
        )

    def _discipline(self, name: str, handle: int = 0, parent: int = _ROOT) -> bytes:
        return struct.pack("=BxHiIII", 0, 0, self.find(name).index, handle, parent, 0)

    def _ask(self, kind: _Do, flags: _How, body: bytes, words: str) -> bytes:
        """Send a request; return the body of the answer. ``words``: what it was to do, for the error."""
        number = next(self._numbers)
        flags |= _How.REQUEST if kind is _Do.GET_LINK else _How.REQUEST | _How.ACKNOWLEDGE
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, flags, number, 0) + body)
        while True:
            answer = self._socket.recv(1 << 16)
            length, answered, _, of, _ = struct.unpack_from("=IHHII", answer)
            if of == number:
                break
        payload = answer[16:length]
        if answered == _ERROR and (error := -struct.unpack_from("=i", payload)[0]):
            why = dict(_attributes(payload[20:])).get(_ERROR_WORDS, b"").rstrip(b"\0").decode()
            raise NetlinkError(error, f"cannot {words}: {why or os.strerror(error)}")
        return payload


def _interface() -> bytes:
    """Return the head of a request that names its interface in an attribute, or a new one."""
    return bytes(16)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _nest(kind: int, value: bytes) -> bytes:
    return _attribute(kind | _NESTED, value)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of the attributes in an answer."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & ~_NESTED, data[4:length]
        data = data[length + -length % 4 :]


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
