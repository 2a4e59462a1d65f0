# SPDX-License-Identifier: Apache-2.0
"""gRPC statuses: one for a whole call, or one that carries a p4.v1.Error for each part of a batch."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import grpc

from softp4.errors import ControlError
from softp4.p4runtime.codes import Code
from softp4.p4runtime.errors import DETAILS_KEY
from softp4.p4runtime.schema import p4runtime_pb2, status_pb2

_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_MAX_MESSAGE: Final = 500  # characters
_MAX_WHY: Final = 150  # of the first message of a batch that is cut
_MAX_CUT: Final = 100  # of the others
_MAX_TRAILERS: Final = 7500  # bytes: clients of gRPC take 8 KiB of metadata unless told otherwise
_SHORT_URL: Final = (
    "/p4.v1.Error"  # type_url of a detail where room is short: only what follows the "/" counts
)
_CARRIED: Final = "gRPC carries the codes of the first {} updates and the messages of {}"


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
    return _within(message, _MAX_MESSAGE)


def _within(message: str, most: int) -> str:
    return message if len(message) <= most else message[: max(most - 1, 0)] + "…" * (most > 0)


def batch_status(call: str, results: Sequence[ControlError | None]) -> BatchStatus:
    """Return the status of a batch that failed in part: UNKNOWN, with one p4.v1.Error per part in order.

    Of a batch whose errors gRPC does not carry, all codes and the first messages; of a larger one, the codes
    of its first parts. The status' own message then says what is missing, and why the first part failed.
    """
    failed = [number for number, error in enumerate(results) if error is not None]
    message = f"{call}: {len(failed)} of {len(results)} failed"
    status = status_pb2.Status(code=Code.UNKNOWN, message=message)
    for error in results:
        status.details.add().Pack(_part(error, _MAX_MESSAGE))
        if not _carried(status):
            status = _cut(message, results, failed)
            break
    return BatchStatus(grpc.StatusCode.UNKNOWN, status.message, ((DETAILS_KEY, status.SerializeToString()),))


def _cut(message: str, results: Sequence[ControlError | None], failed: Sequence[int]) -> Any:
    """Return as much of a batch's status as gRPC carries."""
    first = results[failed[0]]
    assert first is not None
    why = f"update {failed[0]}: {first.code.name}: {_within(first.message, _MAX_WHY)}"
    status = status_pb2.Status(
        code=Code.UNKNOWN, message=f"{message}; first, {why}; {_CARRIED.format(9999, 9999)}"
    )
    for error in results:
        status.details.add(type_url=_SHORT_URL, value=_part(error, 0).SerializeToString())
        if not _carried(status):
            del status.details[-1]
            break
    codes, messages = len(status.details), 0
    for number in (number for number in failed if number < codes):
        detail, error = status.details[number], results[number]
        without, detail.value = detail.value, _part(error, _MAX_CUT).SerializeToString()
        if not _carried(status):
            detail.value = without
            break
        messages += 1
    status.message = f"{message}; first, {why}; {_CARRIED.format(codes, messages)}"
    return status


def _part(error: ControlError | None, most: int) -> Any:
    """Return what became of one part of a batch, with a message of this many characters at most."""
    if error is None:
        return p4runtime_pb2.Error(canonical_code=Code.OK)
    return p4runtime_pb2.Error(canonical_code=int(error.code), message=_within(error.message, most))


def _carried(status: Any) -> bool:
    """Return whether gRPC carries a status in a call's trailers: the message twice, the details in base64."""
    size: int = len(quote(status.message)) + 4 * (status.ByteSize() + 2) // 3
    return size <= _MAX_TRAILERS
