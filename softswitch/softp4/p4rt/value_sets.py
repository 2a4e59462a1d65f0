# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's ValueSetEntry (specification 9.7): a parser value set's members, always written as a whole.

BMv2 knows exact members only, whatever the program's annotations say; here all kinds of matches hold.
"""

from collections.abc import Iterator

from softp4.p4rt.keys import Message, decode_matches, encode_match, invalid
from softp4.p4rt.pipeline import Pipeline
from softp4.p4runtime.schema import p4runtime_pb2


def write_value_set(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply a MODIFY of a ValueSetEntry: its members replace all others. Raises ControlError."""
    if update != p4runtime_pb2.Update.MODIFY:
        raise invalid("value sets are always there; only MODIFY changes them")
    info = pipeline.info.value_set(message.value_set_id)
    what = f"value set {info.name}"
    members = [decode_matches(what, info.fields, member.match) for member in message.members]
    pipeline.switch.value_set(info.name).set(members)


def read_value_sets(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the ValueSetEntry messages that a read selects; id 0 selects all. Raises ControlError."""
    info = pipeline.info
    for each in map(info.value_set, [wanted.value_set_id] if wanted.value_set_id else list(info.value_sets)):
        entry = p4runtime_pb2.ValueSetEntry(value_set_id=each.id)
        for member in pipeline.switch.value_set(each.name).members():
            message = entry.members.add()
            for field, match in zip(each.fields, member, strict=True):
                encode_match(field, match, message)
        yield entry
