# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's errors as text.

A refused write carries one status per update of the batch, inside a status inside the trailing metadata
(specification 1.3, section 10). What people need is: which update, and why.
"""

from collections.abc import Sequence

import grpc

from softp4.p4runtime.codes import Code
from softp4.p4runtime.errors import code_name, details
from weir.controller.entries import Lpm, Match, Ternary
from weir.controller.limits import shortened
from weir.controller.sync import EntryUpdate, Update

_SHOWN = 5  # of one batch; what fails fails often in the same way
_LONGEST = 400  # characters of a switch's words


def describe(error: grpc.RpcError, updates: Sequence[Update] = ()) -> str:
    """Return what went wrong in one call; for a write, with the refused ones of its ``updates``."""
    parts = details(error)
    refused = [
        f"{describe_update(updates[index]) if index < len(updates) else f'update {index}'}:"
        f" {code_name(detail.canonical_code)}{': ' if detail.message else ''}"
        f"{shortened(detail.message, _LONGEST)}"
        for index, detail in enumerate(parts)
        if detail.canonical_code != Code.OK
    ]
    whole = f"{error.code().name}: {shortened(error.details() or 'no details', _LONGEST)}"
    if not refused:
        return whole
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    cut = f" ({whole})" if len(parts) < len(updates) else ""  # gRPC did not carry them all
    return "; ".join(refused[:_SHOWN]) + more + cut


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
