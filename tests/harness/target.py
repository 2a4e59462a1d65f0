# SPDX-License-Identifier: Apache-2.0
"""One interface over the switches that run Weir's program: put a frame in, get everything that comes out.

The same tests run on every target. A target is reset between tests, except for its registers, which no
P4Runtime target can be asked to clear: tests use job ids of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.harness.keys import Count, Key
from weir import p4src

PROGRAM: Final = p4src.PROGRAM
P4INFO: Final = p4src.BUILD / "weir_v1model.p4info.txtpb"

PORTS: Final = (1, 2, 3, 4)  # data ports that every target has
CPU_PORT: Final = 510
EVENTS: Final = "WeirIngress.events"
EGRESS_EVENTS: Final = "WeirEgress.events"


@dataclass(frozen=True, order=True)
class Sent:
    """A frame that left the switch. At the CPU port it starts with the packet_in header."""

    port: int
    frame: bytes

    def __repr__(self) -> str:
        return f"Sent({self.port}, {self.frame.hex()})"


class Target(ABC):
    """A switch that runs Weir's program."""

    name: str
    shortest_frame: int  # bytes that the ports can carry at least
    headroom: int  # bytes that the target can add to a packet
    lane_groups: int = 8  # that the target takes in a packet
    forwards_what_it_cannot_parse: bool = True
    raises_repeats: bool = True  # sends results again in the top class
    guards_sources: bool = True  # looks at where what is forwarded comes from

    @abstractmethod
    def send(self, port: int, frame: bytes) -> list[Sent]:
        """Put a frame into a port; return everything that the switch sends because of it, sorted."""

    @abstractmethod
    def packet_out(self, port: int, frame: bytes) -> list[Sent]:
        """Return the same from the controller: a packet-out that names `port` as its way out."""

    @abstractmethod
    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = (), priority: int = 0
    ) -> None:
        """Add a table entry; fully qualified names, values in the order of the P4Info.

        `priority` is for tables with ternary keys; the greatest wins.
        """

    @abstractmethod
    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = ()) -> None:
        """Change the action of an entry."""

    @abstractmethod
    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        """Set what a table does on a miss."""

    @abstractmethod
    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Make a multicast group of (port, replication id)."""

    @abstractmethod
    def counter(self, name: str, index: int) -> Count:
        """Read an indirect counter."""

    @abstractmethod
    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        """Read the direct counter of an entry."""

    @abstractmethod
    def reset(self) -> None:
        """Remove every entry and group that tests made, and put defaults back."""

    @abstractmethod
    def close(self) -> None:
        """Stop the switch and free what it holds."""
