# SPDX-License-Identifier: Apache-2.0
"""gRPC statuses: one for a whole call, or one that carries a p4.v1.Error for each part of a batch."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import grpc

from weir.p4runtime.codes import Code
from weir.p4runtime.errors import DETAILS_KEY
from weir.p4runtime.schema import p4runtime_pb2, status_pb2
from weir.softswitch.errors import ControlError

_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_MAX_MESSAGE: Final = 500  # characters


class _Fields(NamedTuple):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


class BatchStatus(_Fields, grpc.Status):  # type: ignore[misc]
    """A status as ``ServicerContext.abort_with_status`` takes it."""


def grpc_code(number: int) -> grpc.StatusCode:
    """Return gRPC's enum member for a google.rpc.Code."""
    code: grpc.StatusCode = _BY_NUMBER[number]
    return code


def shortened(message: str) -> str:
    """Return a message fit for a status, which travels as metadata: it may quote a request of any length."""
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"


def batch_status(call: str, results: Sequence[ControlError | None]) -> BatchStatus:
    """Return the status of a batch that failed in part: UNKNOWN, with one p4.v1.Error per part in order."""
    failed = sum(error is not None for error in results)
    message = f"{call}: {failed} of {len(results)} failed"
    status = status_pb2.Status(code=Code.UNKNOWN, message=message)
    for error in results:
        if error is None:
            detail = p4runtime_pb2.Error(canonical_code=Code.OK)
        else:
            detail = p4runtime_pb2.Error(canonical_code=int(error.code), message=shortened(error.message))
        status.details.add().Pack(detail)
    return BatchStatus(grpc.StatusCode.UNKNOWN, message, ((DETAILS_KEY, status.SerializeToString()),))
