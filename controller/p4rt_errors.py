# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's errors in words.

A refused write carries one status per update of the batch, inside a status inside the trailing metadata
(specification 1.3, section 10). What people need is: which update, and why.
"""

from collections.abc import Sequence

import grpc

from weir.controller.entries import Lpm, Match, Ternary
from weir.controller.sync import EntryUpdate, Update
from weir.p4runtime.codes import Code
from weir.p4runtime.errors import code_name, details

_SHOWN = 5  # of one batch; what fails fails often in the same way


def describe(error: grpc.RpcError, updates: Sequence[Update] = ()) -> str:
    """Return what went wrong in one call; for a write, with the refused ones of its ``updates``."""
    refused = [
        f"{describe_update(updates[index]) if index < len(updates) else f'update {index}'}:"
        f" {code_name(detail.canonical_code)}{': ' if detail.message else ''}{detail.message}"
        for index, detail in enumerate(details(error))
        if detail.canonical_code != Code.OK
    ]
    if not refused:
        return f"{error.code().name}: {error.details() or 'no details'}"
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return "; ".join(refused[:_SHOWN]) + more


def describe_update(update: Update) -> str:
    """Return what an update would do, in a few words."""
    verb = update.verb.value.lower()
    if not isinstance(update, EntryUpdate):
        ports = ", ".join(str(replica.port) for replica in sorted(update.replicas))
        return f"{verb} multicast group {update.group} (ports {ports})"
    key = ", ".join(f"{name}={_show(value)}" for name, value in update.entry.match)
    return f"{verb} {update.entry.table} [{key}]"


def _show(value: Match) -> str:
    if isinstance(value, Lpm):
        return f"{value.value:#x}/{value.length}"
    return f"{value.value:#x}&&&{value.mask:#x}" if isinstance(value, Ternary) else f"{value:#x}"
