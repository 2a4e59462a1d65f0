# SPDX-License-Identifier: Apache-2.0
"""Settings for switches that know nothing of Weir, from a topology's classes: strict priorities, early drops.

Such a switch reads the DSCP, AFxy (RFC 2597), and the ECN of each packet. It drops where Weir's own trim.
Each threshold of a layer class gets a queue of its own: most switches have no map from DSCP to a colour
(SONiC), or no queueing discipline that knows drop precedences (Linux, since ``dsmark`` went). Where queues
are too few for that, neighbouring layer classes share theirs. Nothing in Weir needs order.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from weir.controller.qos import NEVER, WEIR_CLASSES, Enqueue, Qos, class_name
from weir.wire.definition import BEST_EFFORT_DSCP, LAYER_CLASSES, MAGNITUDE_CLASSES

PACKET: Final = 1_102  # bytes of a full contribution on the wire: thresholds in bytes are multiples of it
_LARGEST: Final = [(layer, MAGNITUDE_CLASSES - 1) for layer in range(LAYER_CLASSES)]
_TC_CLASSES: Final = 254  # with minor numbers from 1 on; 255 is the one above them
ROOM: Final = 400  # packets in a queue that drops nothing early
_TC_LEAST: Final = "8kbit"  # promised to a class that is to live on what others leave


@dataclass(frozen=True)
class Band:
    """A queue of a port.

    queue: its place in the order of service, 7 first. codes: the DSCPs in it. limit: from how many packets on
    those are dropped that are not ECN-capable; NEVER: from none. mark_at: likewise, others are marked.
    """

    queue: int
    codes: tuple[int, ...]
    limit: int
    mark_at: int

    @property
    def protected(self) -> bool:
        """Return whether packets that may not be lost, which are ECN-capable, wait here among others."""
        return any(WEIR_CLASSES.get(code) in _LARGEST for code in self.codes)

    @property
    def names(self) -> str:
        """Names of its classes."""
        return "; ".join(class_name(code) or f"DSCP {code}" for code in self.codes)


def bands(qos: Qos, most: int) -> list[Band]:
    """Return the queues of a port, ``most`` at most, the first served first.

    Raises ValueError when the classes have more thresholds than that.
    """
    behaviours = qos.per_hop_behaviours()
    for together in range(1, len(behaviours) + 1):
        found = _bands(behaviours, together)
        if len(found) <= most:
            return found
    raise ValueError(f"qos: the classes need {len(found)} queues; such a switch has {most}")


def _bands(behaviours: dict[int, Enqueue], together: int) -> list[Band]:
    """Return the queues when this many neighbouring queues of Weir's classes share theirs."""
    own = sorted({behaviours[code].queue for code in WEIR_CLASSES}, reverse=True)
    shared = {queue: own[number - number % together] for number, queue in enumerate(own)}
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for code, behaviour in behaviours.items():
        queue = shared[behaviour.queue] if code in WEIR_CLASSES else behaviour.queue
        members[-queue, -min(behaviour.trim_at, behaviour.drop_at)].append(code)
    return [
        Band(-queue, tuple(sorted(codes)), -limit, min(behaviours[code].mark_at for code in codes))
        for (queue, limit), codes in sorted(members.items())
    ]


def tc(qos: Qos, interfaces: Sequence[str], rate: str, *, ecn: bool) -> str:
    """Return a shell script that gives these interfaces of a Linux box the classes' queues.

    HTB serves its classes by their priority: each is promised next to nothing and may borrow the whole rate,
    which goes to the first that has packets.

    rate: of the links, in tc's words, as ``1gbit``. ecn: mark protected packets, with ``red``, which not
    every kernel has; without it they are neither marked nor dropped early.
    """
    found = bands(qos, _TC_CLASSES)
    order = sorted({band.queue for band in found}, reverse=True)  # HTB's priorities: 0 to 7, the least first
    default = next(number for number, band in enumerate(found, 1) if BEST_EFFORT_DSCP in band.codes)
    lines = ["#!/bin/sh -e"]
    for interface in interfaces:
        lines += [
            f"tc qdisc replace dev {interface} root handle 1: htb default {default:x}",
            f"tc class add dev {interface} parent 1: classid 1:ff htb rate {rate} ceil {rate}",
        ]
        for number, band in enumerate(found, 1):
            lines += _tc_band(interface, number, band, order.index(band.queue), rate, ecn=ecn)
    return "\n".join(lines) + "\n"


def _tc_band(
    interface: str, number: int, band: Band, priority: int, rate: str, *, ecn: bool
) -> Iterator[str]:
    dev, at = f"dev {interface}", f"1:{number:x}"
    yield f"# {band.names}"
    share = f"rate {_TC_LEAST} ceil {rate} prio {priority} quantum {2 * PACKET}"
    yield f"tc class add {dev} parent 1:ff classid {at} htb {share}"
    if ecn and band.protected and band.mark_at < band.limit < NEVER:
        least, most = PACKET * band.mark_at, PACKET * band.limit
        burst = (2 * least + most) // 3000 + 1
        average = f"min {least} max {most} avpkt 1000 burst {burst} bandwidth {rate} probability 1 ecn"
        yield f"tc qdisc add {dev} parent {at} red limit {PACKET * ROOM} {average}"
    else:
        room = band.limit if band.limit < NEVER and not band.protected else ROOM
        yield f"tc qdisc add {dev} parent {at} bfifo limit {PACKET * room}"
    for code in band.codes:
        match = f"u32 match ip dsfield {code << 2:#04x} 0xfc"
        yield f"tc filter add {dev} parent 1: protocol ip prio 1 {match} flowid {at}"
