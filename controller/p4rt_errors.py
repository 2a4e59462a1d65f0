# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's errors in words.

A refused write carries one status per update of the batch, inside a status inside the trailing metadata
(specification 1.3, section 10). What people need is: which update, and why.
"""

from collections.abc import Sequence
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2

from weir.controller.entries import Lpm, Match
from weir.controller.sync import EntryUpdate, Update

_SHOWN = 5  # of one batch; what fails fails often in the same way


def describe(error: grpc.RpcError, updates: Sequence[Update] = ()) -> str:
    """Return what went wrong in one call; for a write, with the refused ones of its ``updates``."""
    refused = [
        f"{_describe_update(updates[index]) if index < len(updates) else f'update {index}'}:"
        f" {_code_name(detail.canonical_code)}{': ' if detail.message else ''}{detail.message}"
        for index, detail in enumerate(_details(error))
        if detail.canonical_code != code_pb2.OK
    ]
    if not refused:
        return f"{error.code().name}: {error.details() or 'no details'}"
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return "; ".join(refused[:_SHOWN]) + more


def _details(error: grpc.RpcError) -> list[Any]:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status()
            status.ParseFromString(value)
            return [_unpack(detail) for detail in status.details]
    return []


def _unpack(detail: Any) -> Any:
    error = p4runtime_pb2.Error()
    if not detail.Unpack(error):
        error.canonical_code, error.message = (
            code_pb2.UNKNOWN,
            f"a {detail.type_url} instead of a P4Runtime error",
        )
    return error


def _describe_update(update: Update) -> str:
    verb = update.verb.value.lower()
    if not isinstance(update, EntryUpdate):
        ports = ", ".join(str(replica.port) for replica in sorted(update.replicas))
        return f"{verb} multicast group {update.group} (ports {ports})"
    key = ", ".join(f"{name}={_show(value)}" for name, value in update.entry.match)
    return f"{verb} {update.entry.table} [{key}]"


def _show(value: Match) -> str:
    return f"{value.value:#x}/{value.length}" if isinstance(value, Lpm) else f"{value:#x}"


def _code_name(code: int) -> str:
    return str(code_pb2.Code.Name(code)) if code in code_pb2.Code.values() else f"code {code}"
