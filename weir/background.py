# SPDX-License-Identifier: Apache-2.0
"""Background traffic on the links of a job: ``python -m weir.background SPEC``.

Incast: in every period all background hosts send a burst of full UDP frames to each victim, at the same
moment, so that they meet at the victim's port. The mean load there is what was asked for, a share of the
link; a host whose queue is full loses the rest of its burst, so what waits is bounded. Periods begin at
whole multiples on the machine's monotonic clock: processes on several hosts burst together without talking.
"""

import itertools
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from softp4.native.ring import ShmPort
from weir.wire.addresses import mac_bytes
from weir.wire.definition import BEST_EFFORT_DSCP

IP_BYTES: Final = 1500
FRAME_BYTES: Final = 14 + IP_BYTES
DISCARD_PORT: Final = 9
FLOWS: Final = 8  # source ports in turn, so that switches that hash flows use all their paths
_SOURCE_PORT: Final = 40000


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Victim(_Model):
    """The receiver of bursts, and the MAC address by which the sender reaches it (its own, or its
    gateway's).
    """

    ip: str
    mac: str


class Sender(_Model):
    """One background host. ``shm``, ``port``: its shared-memory port; without, the kernel's UDP is used."""

    ip: str
    mac: str
    victims: tuple[Victim, ...]
    shm: str | None = None
    port: int = 0


class IncastSpec(_Model):
    """The traffic that one process sends.

    senders: the background hosts that this process is. hosts: how many there are in all processes together.
    rate_bps: of a victim's link, in frame bytes; load: the share of it that the bursts take on average.
    burst: frames a host sends to a victim at once. dscp: of all frames.
    """

    senders: tuple[Sender, ...]
    hosts: Annotated[int, Field(ge=1)]
    rate_bps: Annotated[int, Field(ge=1)]
    load: Annotated[float, Field(gt=0, le=1)] = 0.5
    burst: Annotated[int, Field(ge=1, le=512)] = 24
    dscp: Annotated[int, Field(ge=0, le=63)] = BEST_EFFORT_DSCP

    @property
    def period_s(self) -> float:
        """Return time from one burst to the next."""
        return self.hosts * self.burst * FRAME_BYTES * 8 / (self.load * self.rate_bps)


class _Outlet(Protocol):
    """The way of one sender's frames to one victim."""

    def send(self, flow: int) -> bool:
        """Send one frame; return False when there was no room."""


class _ShmOutlet:
    """Whole frames, made beforehand, into a port's ring."""

    def __init__(self, port: ShmPort, sender: Sender, victim: Victim, dscp: int) -> None:
        self._port = port
        self._frames = [frame(sender, victim, dscp, flow) for flow in range(FLOWS)]

    def send(self, flow: int) -> bool:
        """See _Outlet."""
        return self._port.send(self._frames[flow])


class _KernelOutlet:
    """Datagrams of the kernel's UDP, one socket a flow."""

    def __init__(self, sender: Sender, victim: Victim, dscp: int) -> None:
        self._payload = bytes(IP_BYTES - 28)
        self._sockets = []
        for flow in range(FLOWS):
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the same port towards every victim
            made.bind((sender.ip, _SOURCE_PORT + flow))
            made.connect((victim.ip, DISCARD_PORT))
            self._sockets.append(made)

    def send(self, flow: int) -> bool:
        """See _Outlet. What the victim's kernel answers to a closed port is an error here, and ignored."""
        try:
            self._sockets[flow].send(self._payload)
        except OSError:
            return False
        return True


def frame(sender: Sender, victim: Victim, dscp: int, flow: int) -> bytes:
    """Return one full UDP frame from ``sender`` to ``victim``, of flow number ``flow``."""
    from weir.host_agent.flows.frames import Address, wrap
    from weir.host_agent.transport.frames import (
        Datagram,  # not before it is needed: this module also describes settings
    )

    return wrap(
        Datagram(bytes(IP_BYTES - 28), dscp << 2),
        Address(sender.ip, _SOURCE_PORT + flow),
        mac_bytes(sender.mac),
        Address(victim.ip, DISCARD_PORT),
        mac_bytes(victim.mac),
    )


def open_outlets(spec: IncastSpec) -> list[list[_Outlet]]:
    """Return each sender's outlets, one a victim."""
    found: list[list[_Outlet]] = []
    for sender in spec.senders:
        if sender.shm is None:
            found.append([_KernelOutlet(sender, victim, spec.dscp) for victim in sender.victims])
        else:
            port = ShmPort(Path(sender.shm), sender.port)
            found.append([_ShmOutlet(port, sender, victim, spec.dscp) for victim in sender.victims])
    return found


def one_burst(outlets: Sequence[Sequence[_Outlet]], victim: int, frames: int, flows: Iterator[int]) -> int:
    """Send all senders' bursts to one victim, frame by frame in turn; return how many frames found room."""
    sent = 0
    ready = [own[victim] for own in outlets if victim < len(own)]
    for _ in range(frames):
        flow = next(flows)
        ready = [outlet for outlet in ready if outlet.send(flow)]  # full: the rest of its burst is lost
        sent += len(ready)
    return sent


def run(spec: IncastSpec) -> None:
    """Send burst after burst, until the process is ended. A burst whose time was slept through is left
    out.
    """
    outlets = open_outlets(spec)
    victims = max(len(own) for own in outlets)
    step = spec.period_s / victims  # one victim after the other within a period
    flows = itertools.cycle(range(FLOWS))
    number = int(time.monotonic() / step) + 1
    while True:
        time.sleep(max(0.0, number * step - time.monotonic()))
        one_burst(outlets, number % victims, spec.burst, flows)
        number = max(number + 1, int(time.monotonic() / step))


if __name__ == "__main__":
    run(IncastSpec.model_validate_json(sys.argv[1]))
