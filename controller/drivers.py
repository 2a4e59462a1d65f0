# SPDX-License-Identifier: Apache-2.0
"""The interfaces by which switches are programmed: P4Runtime, and BfRuntime for a Tofino."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from weir.controller.bfrt.client import BfrtClient
from weir.controller.bfrt.program import TofinoProgram, load_tofino_program
from weir.controller.entries import SwitchState, TableEntry
from weir.controller.program import CompiledProgram, load_program
from weir.controller.qos import QueueSpec
from weir.controller.switch_client import Count, SwitchClient
from weir.controller.sync import Batch
from weir.controller.tofino import QueueLimits
from weir.controller.wiring import BFRT_PROGRAM, Switch

Queues: TypeAlias = tuple[QueueSpec, ...] | tuple[QueueLimits, ...]
Program: TypeAlias = CompiledProgram | TofinoProgram


class Client(Protocol):
    """A session with one switch. Calls block, for a limited time, and raise SwitchError."""

    switch: Switch

    @property
    def alive(self) -> bool:
        """Return whether the session is up."""

    @property
    def primary(self) -> bool:
        """Return whether this controller may write."""

    def close(self) -> None:
        """End the session; what the switch holds stays."""

    def probe(self) -> None:
        """Ask the switch for very little."""

    def ensure_program(self, program: Any) -> bool:
        """See to it that the switch runs ``program``; True if it had to be pushed."""

    def read(self) -> SwitchState:
        """Return what the switch holds of the controller's."""

    def write(self, batches: Iterable[Batch]) -> None:
        """Write batches one after the other."""

    def set_queues(self, queues: Iterable[Any]) -> None:
        """Set queues of ports, in the target's own terms."""

    def read_counter(self, name: str) -> list[Count]:
        """Return all cells of a counter."""

    def read_table_counts(self, table: str) -> dict[TableEntry, Count]:
        """Return the entries of a table with their counters."""


def load(name: str, p4_dir: Path | None) -> Program:
    """Read a compiled program. Raises ProgramError."""
    return load_tofino_program() if name == BFRT_PROGRAM else load_program(name, p4_dir)


def connect(switch: Switch, election_id: int, changed: Callable[[], None]) -> Client:
    """Begin a session by the interface that the switch has. Raises SwitchError."""
    return BfrtClient(switch, changed) if switch.bfrt else SwitchClient(switch, election_id, changed)
