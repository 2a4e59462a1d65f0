# SPDX-License-Identifier: Apache-2.0
"""Network interfaces of one namespace, made and changed over rtnetlink: what ``ip`` and ``tc`` would do.

pyroute2 speaks rtnetlink. Its sockets belong to the thread that opened them, and where it is told a namespace
it forks, which a process with torch or gRPC in it must not: so each change is made by a thread inside.
"""

import errno
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any, Final, TypeVar

_BUCKET: Final = 0x10000  # handle of a token bucket; one more: its only class, where its queue hangs
_UP: Final = 1  # IFF_UP
_T = TypeVar("_T")


class NetlinkError(OSError):
    """The kernel refused a change of its network; the message holds what and why."""


@dataclass(frozen=True)
class Link:
    """An interface as the kernel describes it.

    sent, sent_bytes: frames that it has sent, a GSO batch
    counting as one, and their bytes.
    """

    index: int
    up: bool
    mtu: int
    mac: str
    sent: int
    sent_bytes: int


@dataclass(frozen=True)
class TokenBucket:
    """A rate in bit/s; bytes that may leave at once; seconds for which packets may queue.

    The burst holds a batch of 64 KiB of TCP segments with all their headers: a longer batch than that the
    kernel segments into packets, and every one of them costs what the batch did. The kernel takes at most
    what leaves in 4.2 s as a burst.
    """

    rate_bps: int
    burst: int = 96 * 1024
    latency_s: float = 0.05

    @property
    def limit(self) -> int:
        """Return how many bytes may queue."""
        return int(self.rate_bps / 8 * self.latency_s) + self.burst


class Links:
    """The interfaces of a network namespace; any thread may use it.

    All methods raise NetlinkError when the kernel refuses, or when pyroute2 is not installed.
    """

    def __init__(self, inside: Callable[[Callable[[], Any]], Any]) -> None:
        """Take a function that calls another one in a thread inside the namespace, and returns its result."""
        self._inside = inside

    def add_veth(self, name: str, peer: str, *, there: int | None = None, queues: int = 1) -> None:
        """Make a pair of joined interfaces, both down.

        Args:
            name: of the end in this namespace.
            peer: name of the other end.
            there: an open file of the namespace that gets the other end; None: this one.
            queues: receive and transmit queues of either end.
        """
        counts = {"num_tx_queues": queues, "num_rx_queues": queues}
        far = {"ifname": peer, **counts, **({} if there is None else {"net_ns_fd": there})}
        self._ask(
            f"add veth {name} - {peer}",
            lambda route: route.link("add", ifname=name, kind="veth", peer=far, **counts),
        )

    def add_bridge(self, name: str) -> None:
        """Make a bridge, which forwards between the interfaces that are given it as their ``bridge``."""
        self._ask(f"add bridge {name}", lambda route: route.link("add", ifname=name, kind="bridge"))

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

        def change(route: Any) -> None:
            changes = {
                "address": mac,
                "mtu": mtu,
                "master": None if bridge is None else _index(route, bridge),
            }
            if given := {key: value for key, value in changes.items() if value is not None}:
                route.link("set", ifname=name, **given)
            if up is not None:
                route.link("set", ifname=name, state="up" if up else "down")

        self._ask(f"change {name}", change)

    def remove(self, name: str) -> None:
        """Remove an interface, and the other end of a pair with it."""
        self._ask(f"remove {name}", lambda route: route.link("del", ifname=name))

    def shaped_bytes(self, name: str) -> int:
        """Return the bytes of all packets that an interface's token bucket has let through, each one with
        its headers, also where the kernel handles several as one.
        """

        def look(route: Any) -> int:
            index = _index(route, name)
            (root,) = (one for one in route.get_qdiscs(index=index) if one["handle"] == _BUCKET)
            return int(root.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])

        return self._ask(f"find the token bucket of {name}", look)

    def find(self, name: str) -> Link:
        """Return an interface by name."""
        (found,) = self._ask(f"find {name}", lambda route: route.link("get", ifname=name))
        return Link(
            found["index"],
            up=bool(found["flags"] & _UP),
            mtu=found.get("mtu"),
            mac=found.get("address"),
            sent=found.get("stats64")["tx_packets"],
            sent_bytes=found.get("stats64")["tx_bytes"],
        )

    def add_address(self, name: str, address: str) -> None:
        """Give an interface an IPv4 address with its prefix, such as "10.0.0.1/24"."""
        own = IPv4Interface(address)
        self._ask(
            f"add {address} to {name}",
            lambda route: route.addr(
                "add", index=_index(route, name), address=str(own.ip), prefixlen=own.network.prefixlen
            ),
        )

    def set_neighbour(self, name: str, address: str, mac: str) -> None:
        """Say which MAC address an IPv4 address behind an interface has, so that no ARP asks."""
        self._ask(
            f"set neighbour {address} of {name}",
            lambda route: route.neigh(
                "replace", ifindex=_index(route, name), dst=address, lladdr=mac, state="permanent"
            ),
        )

    def set_gateway(self, name: str, address: str) -> None:
        """Send what is for no other network to an IPv4 address behind an interface."""
        self._ask(
            f"set gateway {address} of {name}",
            lambda route: route.route("replace", dst="default", gateway=address, oif=_index(route, name)),
        )

    def shape(self, name: str, bucket: TokenBucket) -> None:
        """Let an interface send no faster than a token bucket; what finds its queue full is dropped."""
        size = {"rate": bucket.rate_bps // 8, "burst": bucket.burst, "limit": bucket.limit}
        self._ask(
            f"shape {name} with a token bucket",
            lambda route: route.tc("replace", "tbf", index=_index(route, name), handle=_BUCKET, **size),
        )

    def prioritise(self, name: str, length: int) -> None:
        """Give a token bucket a queue of that many frames for each of three priorities, best ones first."""

        def change(route: Any) -> None:
            route.link("set", ifname=name, txqlen=length)
            route.tc("replace", "pfifo_fast", index=_index(route, name), parent=_BUCKET + 1)

        self._ask(f"give {name} queues by priority", change)

    def unshape(self, name: str) -> None:
        """Take an interface's token bucket away."""
        self._ask(
            f"remove the token bucket of {name}",
            lambda route: route.tc("del", index=_index(route, name), root=True),
        )

    def _ask(self, words: str, change: Callable[[Any], _T]) -> _T:
        """Return what a function makes of an ``IPRoute`` inside; ``words`` say its purpose in errors."""
        try:  # here, as it takes a while, and a program that makes no interfaces does without pyroute2
            from pyroute2 import IPRoute
            from pyroute2.netlink.exceptions import NetlinkError as Refusal
        except ImportError as error:
            raise NetlinkError(
                errno.ENOPKG, f"cannot {words}: pyroute2 is not installed; `pip install pyroute2`"
            ) from error

        def inside() -> _T:
            with IPRoute(ext_ack=True) as route:
                return change(route)

        try:
            result: _T = self._inside(inside)
        except Refusal as error:
            raise NetlinkError(error.code, f"cannot {words}: {error.args[1]}") from error
        except struct.error as error:
            raise NetlinkError(errno.ERANGE, f"cannot {words}: a number is out of range ({error})") from error
        return result


def _index(route: Any, name: str) -> int:
    """Return the number of an interface. Raises pyroute2's NetlinkError when there is none."""
    index: int = route.link("get", ifname=name)[0]["index"]
    return index
