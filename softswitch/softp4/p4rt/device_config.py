# SPDX-License-Identifier: Apache-2.0
"""``p4_device_config`` of a pipeline: BMv2's JSON, plain or in the message that PI wanted around it once.

Controllers of 2017 to 2019 send ``p4.tmp.P4DeviceConfig``, and PI, behind which BMv2 serves P4Runtime, still
unwraps it.
"""

import logging
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from softp4.errors import Code, ControlError
from softp4.protobuf import Schema

_log = logging.getLogger(__name__)
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_WHITE: Final = b" \t\r\n"
_BYTE_ORDER_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def _message() -> Any:
    """Return the class of the message. Its field 2, options for PI's targets, means nothing here."""
    file = descriptor_pb2.FileDescriptorProto(name="p4/tmp/p4config.proto", package="p4.tmp", syntax="proto3")
    message = file.message_type.add(name="P4DeviceConfig")
    message.field.add(name="reassign", number=1, type=_FIELD.TYPE_BOOL, label=_FIELD.LABEL_OPTIONAL)
    message.field.add(name="device_data", number=3, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    return Schema(files.SerializeToString()).module(file.name).P4DeviceConfig


_P4DeviceConfig: Final = _message()


def program_json(config: bytes) -> bytes:
    """Return the program's JSON, without a P4DeviceConfig around it.

    Raises:
        ControlError: INVALID_ARGUMENT, for an empty config, and for one that is neither.
    """
    if not config:
        raise _invalid("is empty: it takes the JSON that p4c-bm2-ss makes")
    if config.lstrip(_WHITE)[:1] in (b"{", b"[") or config.startswith(_BYTE_ORDER_MARKS):
        return config
    try:
        wrapped = _P4DeviceConfig.FromString(config)
    except DecodeError:
        raise _invalid(
            "is neither the JSON that p4c-bm2-ss makes nor a p4.tmp.P4DeviceConfig with it"
        ) from None
    if not wrapped.device_data:
        raise _invalid("is a p4.tmp.P4DeviceConfig without device_data, or no JSON")
    _log.info("the controller wraps its program in p4.tmp.P4DeviceConfig, which P4Runtime gave up in 2019")
    return bytes(wrapped.device_data)


def _invalid(what: str) -> ControlError:
    return ControlError(Code.INVALID_ARGUMENT, f"p4_device_config {what}")
