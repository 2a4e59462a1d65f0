# SPDX-License-Identifier: Apache-2.0
"""Whether a message says what this version of P4Runtime does not know, and so would leave out."""

import functools
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_MESSAGE: Final = FieldDescriptor.CPPTYPE_MESSAGE


class _Parts(NamedTuple):
    """Where a type of message has messages: in which choices, and in which fields beside them."""

    choices: tuple[str, ...]
    single: tuple[str, ...]
    repeated: tuple[str, ...]
    messages: frozenset[str]


def has_unknown(message: Any) -> bool:
    """Return whether a message, or one in it, has a field that its type does not have."""
    if len(message.UnknownFields()):
        return True
    parts = _parts(message.DESCRIPTOR)
    for name in parts.repeated:
        for each in getattr(message, name):
            if has_unknown(each):
                return True
    for choice in parts.choices:
        chosen = message.WhichOneof(choice)
        if chosen in parts.messages and has_unknown(getattr(message, chosen)):
            return True
    return any(message.HasField(name) and has_unknown(getattr(message, name)) for name in parts.single)


@functools.cache
def _parts(kind: Descriptor) -> _Parts:
    # ListFields would do, but writes of many entries would spend a third of their time in it.
    fields: list[Any] = [field for field in kind.fields if field.cpp_type == _MESSAGE]
    repeated = [field.name for field in fields if field.label == field.LABEL_REPEATED]
    chosen = {
        field.name: field.containing_oneof.name for field in fields if field.containing_oneof is not None
    }
    names = frozenset(field.name for field in fields)
    single = names.difference(repeated, chosen)
    return _Parts(tuple(set(chosen.values())), tuple(single), tuple(repeated), names)
