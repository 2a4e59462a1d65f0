# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's Action: to and from a name with arguments."""

from softp4.p4rt.keys import Message, invalid
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.p4info_objects import ActionInfo
from softp4.p4rt.values import decode, encode


def decode_action(info: P4InfoIndex, message: Message) -> tuple[ActionInfo, tuple[int, ...]]:
    """Return an action of P4Info and its arguments in order. Raises ControlError."""
    action = info.action(message.action_id)
    given: dict[int, bytes] = {}
    for param in message.params:
        number = param.param_id
        if number in given:
            raise invalid(f"action {action.name}: parameter {number} is given twice")
        given[number] = param.value
    args = []
    for wanted in action.params:
        value = given.pop(wanted.id, None)
        if value is None:
            raise invalid(f"action {action.name}, parameter {wanted.name} is missing")
        args.append(decode(value, wanted.bits, "action ", action.name, ", parameter ", wanted.name))
    if given:
        raise invalid(f"action {action.name} has no parameter with id {min(given)}")
    return action, tuple(args)


def encode_action(info: P4InfoIndex, name: str, args: tuple[int, ...], message: Message) -> bool:
    """Fill an Action message; False when P4Info does not have the action (the compiler made it)."""
    action = info.action_named(name)
    if action is None:
        return False
    message.action_id = action.id
    for param, value in zip(action.params, args, strict=True):
        message.params.add(param_id=param.id, value=encode(value))
    return True
