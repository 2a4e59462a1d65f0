# SPDX-License-Identifier: Apache-2.0
"""The contents of a switch as plain values: table entries and multicast groups, named as in the P4
program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias


@dataclass(frozen=True)
class Lpm:
    """A longest-prefix match: the first ``length`` bits of ``value``; the others are zero."""

    value: int
    length: int


@dataclass(frozen=True)
class Ternary:
    """The bits of ``value`` that ``mask`` has; the others are zero. A mask of zero matches everything."""

    value: int
    mask: int


Match: TypeAlias = int | Lpm | Ternary  # a plain number is an exact match
Param: TypeAlias = int | str  # a word, where a chip's own table wants one
Key: TypeAlias = tuple[str, tuple[tuple[str, Match], ...], int]


@dataclass(frozen=True)
class TableEntry:
    """One entry of one table.

    Args:
        table: the table's full P4 name.
        match: (key name as in P4Info, value) in the table's key order.
        action: the action's full P4 name.
        params: (parameter name, value) in the action's order.
        priority: of entries with ternary matches, from 1; among several that match, the greatest wins.
    """

    table: str
    match: tuple[tuple[str, Match], ...]
    action: str
    params: tuple[tuple[str, Param], ...] = ()
    priority: int = 0

    @property
    def key(self) -> Key:
        """Identity of the entry: its table, match and priority."""
        return (self.table, self.match, self.priority)


@dataclass(frozen=True, order=True)
class Replica:
    """One copy a multicast group makes: out of ``port``, marked with replication id ``rid``."""

    port: int
    rid: int


@dataclass(frozen=True)
class SwitchState:
    """Everything the controller installs in one switch; desired or as read back."""

    entries: frozenset[TableEntry] = frozenset()
    groups: Mapping[int, frozenset[Replica]] = field(default_factory=lambda: MappingProxyType({}))
