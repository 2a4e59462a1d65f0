# SPDX-License-Identifier: Apache-2.0
"""The difference between what a switch holds and what it must hold, in an order that is always safe.

Admission is the gate: it closes first and opens last. So at no moment is a worker admitted to slots whose
results could not be delivered, or to slots that another job has; nor does a leaf of a job that spans racks
take its own rack's sums for the job's: the way up to the spines is there before the gate opens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from weir.controller.entries import Key, Replica, SwitchState, TableEntry
from weir.controller.tables import admission, tofino


class Verb(Enum):
    """The kinds of update of an entry or group, by P4Runtime's names."""

    INSERT = "INSERT"
    MODIFY = "MODIFY"
    DELETE = "DELETE"


@dataclass(frozen=True)
class EntryUpdate:
    """One change of a table."""

    verb: Verb
    entry: TableEntry


@dataclass(frozen=True)
class GroupUpdate:
    """One change of a multicast group."""

    verb: Verb
    group: int
    replicas: frozenset[Replica]


Update: TypeAlias = EntryUpdate | GroupUpdate
Batch: TypeAlias = tuple[Update, ...]


def plan(actual: SwitchState, desired: SwitchState) -> list[Batch]:
    """Return batches to write one after the other; within a batch a switch may take any order.

    Gate closes, other entries go, groups change, other entries come, gate opens.
    """
    updates = list(_entry_updates(actual.entries, desired.entries))
    gate = [update for update in updates if update.entry.table in admission.GATES]
    others = [update for update in updates if update.entry.table not in admission.GATES]
    groups = list(_group_updates(actual, desired))
    batches: list[list[Update]] = [
        [update for update in gate if update.verb is Verb.DELETE],
        [update for update in others if update.verb is Verb.DELETE],
        [update for update in groups if update.verb is Verb.DELETE],
        [update for update in groups if update.verb is not Verb.DELETE],
        [update for update in others if update.verb is not Verb.DELETE],
        [update for update in gate if update.verb is not Verb.DELETE],
    ]
    return [tuple(batch) for batch in batches if batch]


def _entry_updates(actual: frozenset[TableEntry], desired: frozenset[TableEntry]) -> Iterable[EntryUpdate]:
    """Yield the changes. Most entries are as they must be, and cost little."""
    have: dict[Key, TableEntry] = {entry.key: entry for entry in actual - desired}
    want: dict[Key, TableEntry] = {entry.key: entry for entry in desired - actual}
    for key, entry in have.items():
        if key not in want and entry.table not in tofino.LEFT:
            yield EntryUpdate(Verb.DELETE, entry)
    for key, entry in want.items():
        yield EntryUpdate(Verb.MODIFY if key in have else Verb.INSERT, entry)


def _group_updates(actual: SwitchState, desired: SwitchState) -> Iterable[GroupUpdate]:
    for group, replicas in actual.groups.items():
        if group not in desired.groups:
            yield GroupUpdate(Verb.DELETE, group, replicas)
    for group, replicas in desired.groups.items():
        if group not in actual.groups:
            yield GroupUpdate(Verb.INSERT, group, replicas)
        elif actual.groups[group] != replicas:
            yield GroupUpdate(Verb.MODIFY, group, replicas)
