# SPDX-License-Identifier: Apache-2.0
"""The errors of a batch: one for each of its parts, in a status within the call's trailing metadata.

(Specification 1.5, section 10.)
"""

from typing import Any, Final

import grpc

from softp4.p4runtime.codes import Code
from softp4.p4runtime.schema import p4runtime_pb2, status_pb2

DETAILS_KEY: Final = "grpc-status-details-bin"


def details(error: grpc.RpcError) -> list[Any]:
    """Return a ``p4.v1.Error`` for each part of the batch that a call refused; none if it does not say.

    The parts that were accepted are among them, as OK.
    """
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return [_unpack(detail) for detail in status_pb2.Status.FromString(value).details]
    return []


def code_name(code: int) -> str:
    """Return the name of a code, also of one that nobody has heard of."""
    return Code(code).name if code in tuple(Code) else f"code {code}"


def _unpack(detail: Any) -> Any:
    error = p4runtime_pb2.Error()
    if not detail.Unpack(error):
        error.canonical_code = Code.UNKNOWN
        error.message = f"a {detail.type_url} instead of a P4Runtime error"
    return error
