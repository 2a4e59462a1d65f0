# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's action profiles (specification 9.2): members, groups, and what entries refer to."""

from collections.abc import Iterator
from typing import Final

from softp4.errors import Code, ControlError
from softp4.p4rt.actions import decode_action, encode_action
from softp4.p4rt.keys import Message, invalid
from softp4.p4rt.p4info_objects import ProfileInfo, TableInfo
from softp4.p4rt.pipeline import Pipeline
from softp4.p4rt.values import decode, encode
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.entry import (
    ActionSet,
    ByGroup,
    ByMember,
    Group,
    GroupMember,
    Member,
    Via,
    Watch,
    WeightedAction,
)

_UPDATE: Final = p4runtime_pb2.Update
_PORT_BITS: Final = 32


# -- members and groups ----------------------------------------------------------------------------------


def write_member(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply an update of an ActionProfileMember. Raises ControlError; then nothing has changed."""
    profile = pipeline.info.profile(message.action_profile_id)
    store = pipeline.switch.profile(profile.name)
    if message.member_id == 0:
        raise invalid(f"action profile {profile.name}: member 0 stands for all members: ids start at 1")
    if update == _UPDATE.DELETE:
        store.delete_member(message.member_id)
        return
    action, args = _action(pipeline, profile, message.action)
    member = Member(message.member_id, action, args)
    if update == _UPDATE.INSERT:
        store.insert_member(member)
    else:
        store.modify_member(member)


def write_group(pipeline: Pipeline, update: int, message: Message) -> None:
    """Apply an update of an ActionProfileGroup. Raises ControlError; then nothing has changed."""
    profile = pipeline.info.profile(message.action_profile_id)
    store = pipeline.switch.profile(profile.name)
    if message.group_id == 0:
        raise invalid(f"action profile {profile.name}: group 0 stands for all groups: ids start at 1")
    if update == _UPDATE.DELETE:
        store.delete_group(message.group_id)
        return
    members = tuple(
        GroupMember(each.member_id, each.weight, _watch(each, f"group {message.group_id}"))
        for each in message.members
    )
    group = Group(message.group_id, members, message.max_size)
    if update == _UPDATE.INSERT:
        store.insert_group(group)
    else:
        store.modify_group(group)


def read_members(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the ActionProfileMember messages that a read selects; id 0 means all. Raises ControlError."""
    for profile in _selected(pipeline, wanted.action_profile_id):
        for member in pipeline.switch.profile(profile.name).members():
            if wanted.member_id in (0, member.id):
                message = p4runtime_pb2.ActionProfileMember(action_profile_id=profile.id, member_id=member.id)
                encode_action(pipeline.info, member.action, member.args, message.action)
                yield message


def read_groups(pipeline: Pipeline, wanted: Message) -> Iterator[Message]:
    """Yield the ActionProfileGroup messages that a read selects; id 0 means all. Raises ControlError."""
    for profile in _selected(pipeline, wanted.action_profile_id):
        for group in pipeline.switch.profile(profile.name).groups():
            if wanted.group_id in (0, group.id):
                message = p4runtime_pb2.ActionProfileGroup(
                    action_profile_id=profile.id, group_id=group.id, max_size=group.max_size
                )
                for each in group.members:
                    member = message.members.add(member_id=each.member, weight=each.weight)
                    _encode_watch(each.watch, member)
                yield message


def _selected(pipeline: Pipeline, number: int) -> list[ProfileInfo]:
    return [pipeline.info.profile(number)] if number else list(pipeline.info.profiles.values())


# -- what entries refer to ---------------------------------------------------------------------------------


def decode_via(pipeline: Pipeline, table: TableInfo, action: Message) -> Via:
    """Return what a TableAction of a table with an action profile refers to. Raises ControlError."""
    kind = action.WhichOneof("type")
    if kind == "action_profile_member_id":
        return ByMember(action.action_profile_member_id)
    if kind == "action_profile_group_id":
        return ByGroup(action.action_profile_group_id)
    if kind != "action_profile_action_set":
        raise invalid(f"table {table.name} has an action profile: its entries have no action of their own")
    profile = pipeline.info.profile(table.profile)
    actions = []
    one_shot = action.action_profile_action_set
    for name in ("action_selection_mode", "size_semantics"):
        if getattr(one_shot, name):
            raise ControlError(Code.UNIMPLEMENTED, f"{table.title}: {name} of a one-shot is not supported")
    for each in one_shot.action_profile_actions:
        name, args = _action(pipeline, profile, each.action)
        actions.append(WeightedAction(name, args, each.weight, _watch(each, f"table {table.name}")))
    return ActionSet(tuple(actions))


def encode_via(pipeline: Pipeline, via: Via, message: Message) -> None:
    """Fill a TableAction with what an entry refers to."""
    if isinstance(via, ByMember):
        message.action_profile_member_id = via.member
    elif isinstance(via, ByGroup):
        message.action_profile_group_id = via.group
    else:
        for each in via.actions:
            action = message.action_profile_action_set.action_profile_actions.add(weight=each.weight)
            encode_action(pipeline.info, each.action, each.args, action.action)
            _encode_watch(each.watch, action)


def _action(pipeline: Pipeline, profile: ProfileInfo, message: Message) -> tuple[str, tuple[int, ...]]:
    action, args = decode_action(pipeline.info, message)
    allowed = (pipeline.info.tables[number].entry_actions for number in profile.tables)
    if not any(action.id in each for each in allowed):
        raise invalid(f"action profile {profile.name} has no action {action.name}")
    return action.name, args


def _watch(message: Message, where: str) -> Watch | None:
    kind = message.WhichOneof("watch_kind")
    if kind is None:
        return None
    if kind == "watch":
        if message.watch < 0:
            raise invalid(f"{where}: port {message.watch} cannot be watched")
        return Watch(message.watch, numeric=True)
    return Watch(decode(message.watch_port, _PORT_BITS, f"{where}, watched port"))


def _encode_watch(watch: Watch | None, message: Message) -> None:
    if watch is None:
        return
    if watch.numeric:
        message.watch = watch.port
    else:
        message.watch_port = encode(watch.port)
