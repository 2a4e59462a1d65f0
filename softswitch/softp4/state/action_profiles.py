# SPDX-License-Identifier: Apache-2.0
"""One action profile as the control plane sees it: members, groups, and what table entries refer to.

A hash chooses the member of a group as BMv2 does it behind P4Runtime: a member of weight w is w members to
the data plane, each with a handle, the lowest that is free. The hash, modulo their number, counts the handles
of a group in order, without those whose watched port is down.
"""

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from softp4.codegen.keys import arg_word_count, pack_args
from softp4.errors import Code, ControlError
from softp4.program.types import ActionProfile, Program
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.state.action_checks import check_args
from softp4.state.entry import ActionSet, ByGroup, ByMember, Group, Member, Via

BY_MEMBER: Final = (1 << 32) - 2  # SW_BY_MEMBER of runtime/profile.h
BY_GROUP: Final = (1 << 32) - 3


@dataclass(frozen=True)
class ProfileLimits:
    """Limits of a profile, as P4Info has them; 0 is no limit.

    Attributes:
        size: members, without a selector; with one, the weights of all groups' members together, or
            (``by_members``) their number.
        group_size: the same for one group.
        member_weight: the greatest weight of a member.
    """

    size: int = 0
    by_members: bool = False
    group_size: int = 0
    member_weight: int = 0


@dataclass(frozen=True)
class Reference:
    """Reference of an entry to a profile: an action number of the data plane and its argument."""

    via: Via
    action: int
    handle: int


@dataclass
class _Member:
    member: Member
    handles: list[int]
    references: int = 0


@dataclass
class _Group:
    group: Group
    handle: int
    references: int = 0


@dataclass
class _Set:
    """A one-shot group: its own members' handles, for each action."""

    actions: ActionSet
    handles: list[list[int]] = field(default_factory=list)


class _Handles:
    """Small numbers, the lowest free one first."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._fresh = itertools.count()

    def take(self) -> int:
        return heapq.heappop(self._free) if self._free else next(self._fresh)

    def give_back(self, handle: int) -> None:
        heapq.heappush(self._free, handle)


class ProfileStore:
    """A profile: its members and groups.

    Thread-safe. A call that cannot be done raises ControlError and changes nothing.
    """

    def __init__(self, native: NativeSwitch, number: int, program: Program, profile: ActionProfile) -> None:
        self._native = native
        self._number = number
        self._profile = profile
        self._actions = program.profile_actions(profile.name)
        self._words = arg_word_count(list(self._actions.values()))
        self._members: dict[int, _Member] = {}
        self._groups: dict[int, _Group] = {}
        self._sets: dict[int, _Set] = {}
        self._member_handles = _Handles()
        self._group_handles = _Handles()
        self._down: set[int] = set()
        self._limits = ProfileLimits(profile.size)

    # -- members -----------------------------------------------------------------------------------

    @exclusive
    def insert_member(self, member: Member) -> None:
        """Add a member. ALREADY_EXISTS for its id, RESOURCE_EXHAUSTED when the profile is full."""
        self._check_manual()
        self._check_action(member.action, member.args)
        if member.id in self._members:
            raise self._error(Code.ALREADY_EXISTS, f"has a member {member.id} already")
        limit = self._limits.size
        if self._profile.selector is None and limit and len(self._members) >= limit:
            raise self._error(Code.RESOURCE_EXHAUSTED, f"is full ({limit} members)")
        self._members[member.id] = _Member(member, [self._new_member(member.action, member.args)])

    @exclusive
    def modify_member(self, member: Member) -> None:
        """Replace a member's action, for every entry and group that refers to it at once."""
        self._check_action(member.action, member.args)
        stored = self._member(member.id)
        with self._native.paused():
            for handle in stored.handles:
                self._set_member(handle, member.action, member.args)
        stored.member = member

    @exclusive
    def delete_member(self, number: int) -> None:
        """Remove a member. FAILED_PRECONDITION while an entry or a group refers to it."""
        stored = self._member(number)
        if stored.references or any(self._weight_in(group, number) for group in self._groups.values()):
            raise self._error(Code.FAILED_PRECONDITION, f"member {number} is in use")
        self._drop_members(stored.handles)
        del self._members[number]

    @exclusive
    def members(self) -> list[Member]:
        """Return all members in order of insertion; those of one-shot groups are not among them."""
        return [stored.member for stored in self._members.values()]

    # -- groups ------------------------------------------------------------------------------------

    @exclusive
    def insert_group(self, group: Group) -> None:
        """Add a group, which may be empty.

        RESOURCE_EXHAUSTED when it is larger than its, or the profile's, maximum.
        """
        self._check_manual()
        self._check_selector()
        if group.id in self._groups:
            raise self._error(Code.ALREADY_EXISTS, f"has a group {group.id} already")
        if group.max_size < 0 or (self._limits.group_size and group.max_size > self._limits.group_size):
            raise self._error(
                Code.INVALID_ARGUMENT, f"max_size {group.max_size} is not in 0..{self._limits.group_size}"
            )
        self._check_members(group)
        stored = _Group(Group(group.id, (), group.max_size), self._group_handles.take())
        self._groups[group.id] = stored
        self._fill(stored, group)

    @exclusive
    def modify_group(self, group: Group) -> None:
        """Replace a group's members. Its maximum cannot change; 0 leaves it."""
        stored = self._group(group.id)
        if group.max_size not in (0, stored.group.max_size):
            raise self._error(Code.INVALID_ARGUMENT, f"group {group.id}: max_size cannot change")
        group = Group(group.id, group.members, stored.group.max_size)
        self._check_members(group)
        self._fill(stored, group)

    @exclusive
    def delete_group(self, number: int) -> None:
        """Remove a group. FAILED_PRECONDITION while an entry refers to it."""
        stored = self._group(number)
        if stored.references:
            raise self._error(Code.FAILED_PRECONDITION, f"group {number} is in use")
        del self._groups[number]
        self._native.remove_member_group(self._number, stored.handle)
        self._group_handles.give_back(stored.handle)
        self._drop_unused_copies(each.member for each in stored.group.members)

    @exclusive
    def groups(self) -> list[Group]:
        """Return all groups in order of insertion; one-shot groups are not among them."""
        return [stored.group for stored in self._groups.values()]

    def _fill(self, stored: _Group, group: Group) -> None:
        before = stored.group.members
        for each in sorted(group.members, key=lambda each: each.member):
            found = self._members[each.member]
            while len(found.handles) < each.weight:
                found.handles.append(self._new_member(found.member.action, found.member.args))
        stored.group = group
        self._install_group(stored)
        self._drop_unused_copies(each.member for each in (*before, *group.members))

    def _drop_unused_copies(self, members: Iterable[int]) -> None:
        """Remove what no group's weight needs any more of members."""
        for number in sorted(set(members)):
            stored = self._members[number]
            needed = max(1, *(self._weight_in(group, number) for group in self._groups.values()), 1)
            self._drop_members(stored.handles[needed:])
            del stored.handles[needed:]

    @staticmethod
    def _weight_in(group: _Group, number: int) -> int:
        return next((each.weight for each in group.group.members if each.member == number), 0)

    # -- what entries refer to -----------------------------------------------------------------------

    def acquire(self, via: Via) -> Reference:
        """Count one more entry that refers to a member or group, or makes a one-shot group for it."""
        if isinstance(via, ByMember):
            if via.member not in self._members:
                raise self._error(Code.INVALID_ARGUMENT, f"has no member {via.member}")
            member = self._members[via.member]
            member.references += 1
            return Reference(via, BY_MEMBER, member.handles[0])
        self._check_selector()
        if isinstance(via, ActionSet):
            return Reference(via, BY_GROUP, self._new_set(via))
        if via.group not in self._groups:
            raise self._error(Code.INVALID_ARGUMENT, f"has no group {via.group}")
        group = self._groups[via.group]
        if not group.group.members:
            raise self._error(Code.FAILED_PRECONDITION, f"group {via.group} is empty")
        group.references += 1
        return Reference(via, BY_GROUP, group.handle)

    def release(self, reference: Reference) -> None:
        """Count one entry less, which is gone or refers to something else."""
        if isinstance(reference.via, ByMember):
            self._members[reference.via.member].references -= 1
        elif isinstance(reference.via, ByGroup):
            self._groups[reference.via.group].references -= 1
        else:
            made = self._sets.pop(reference.handle)
            self._native.remove_member_group(self._number, reference.handle)
            self._group_handles.give_back(reference.handle)
            self._drop_members(itertools.chain.from_iterable(made.handles))

    def _new_set(self, actions: ActionSet) -> int:
        if self._members or self._groups:
            raise self._error(Code.INVALID_ARGUMENT, "has members and groups: no one-shot groups beside them")
        if not actions.actions:
            raise self._error(Code.UNIMPLEMENTED, "a one-shot group must have members")
        for each in actions.actions:
            self._check_action(each.action, each.args)
        self._check_weights([each.weight for each in actions.actions], self._limits.group_size, 0)
        made = _Set(actions)
        for each in actions.actions:
            made.handles.append([self._new_member(each.action, each.args) for _ in range(each.weight)])
        handle = self._group_handles.take()
        self._sets[handle] = made
        self._install_set(handle, made)
        return handle

    @exclusive
    def limit(self, limits: ProfileLimits) -> None:
        """Set what the profile can hold from now on."""
        self._limits = limits

    # -- ports -------------------------------------------------------------------------------------

    @exclusive
    def set_port_up(self, port: int, up: bool) -> None:
        """Tell whether a port works: members that watch one that does not are not chosen."""
        if up:
            self._down.discard(port)
        else:
            self._down.add(port)
        for group in self._groups.values():
            if any(each.watch is not None and each.watch.port == port for each in group.group.members):
                self._install_group(group)
        for handle, made in self._sets.items():
            if any(each.watch is not None and each.watch.port == port for each in made.actions.actions):
                self._install_set(handle, made)

    # -- the data plane ------------------------------------------------------------------------------

    def _new_member(self, action: str, args: Sequence[int]) -> int:
        handle = self._member_handles.take()
        self._set_member(handle, action, args)
        return handle

    def _set_member(self, handle: int, action: str, args: Sequence[int]) -> None:
        found = self._actions[action]
        words = pack_args(found, args, self._words)
        self._native.set_member(self._number, handle, found.id, words)

    def _drop_members(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._native.remove_member(self._number, handle)
            self._member_handles.give_back(handle)

    def _install_group(self, stored: _Group) -> None:
        handles = [
            self._members[each.member].handles[: each.weight]
            for each in stored.group.members
            if each.watch is None or each.watch.port not in self._down
        ]
        self._install(stored.handle, handles)

    def _install_set(self, handle: int, made: _Set) -> None:
        handles = [
            found
            for each, found in zip(made.actions.actions, made.handles, strict=True)
            if each.watch is None or each.watch.port not in self._down
        ]
        self._install(handle, handles)

    def _install(self, handle: int, members: list[list[int]]) -> None:
        chosen = sorted(itertools.chain.from_iterable(members))
        self._native.set_member_group(self._number, handle, chosen)

    # -- checks ------------------------------------------------------------------------------------

    def _check_manual(self) -> None:
        if self._sets:
            raise self._error(Code.INVALID_ARGUMENT, "has one-shot groups: no members and groups beside them")

    def _check_selector(self) -> None:
        if self._profile.selector is None:
            raise self._error(Code.INVALID_ARGUMENT, "has no selector, so no groups")

    def _check_action(self, name: str, args: Sequence[int]) -> None:
        if name not in self._actions:
            raise self._error(Code.INVALID_ARGUMENT, f"has no action {name}, but {', '.join(self._actions)}")
        check_args(self._actions[name], args)

    def _check_members(self, group: Group) -> None:
        numbers = [each.member for each in group.members]
        for number in numbers:
            if number not in self._members:
                raise self._error(Code.NOT_FOUND, f"has no member {number}")
        if len(set(numbers)) != len(numbers):
            raise self._error(Code.INVALID_ARGUMENT, f"group {group.id} names a member twice: use weights")
        others = (each.group.members for number, each in self._groups.items() if number != group.id)
        self._check_weights(
            [each.weight for each in group.members],
            group.max_size or self._limits.group_size,
            sum(self._measure([each.weight for each in members]) for members in others),
        )

    def _check_weights(self, weights: Sequence[int], group_size: int, others: int) -> None:
        limits = self._limits
        if any(weight < 1 for weight in weights):
            raise self._error(Code.INVALID_ARGUMENT, "a weight must be positive")
        if limits.member_weight and any(weight > limits.member_weight for weight in weights):
            raise self._error(Code.INVALID_ARGUMENT, f"a weight is above {limits.member_weight}")
        size = self._measure(weights)
        if group_size and size > group_size:
            raise self._error(Code.RESOURCE_EXHAUSTED, f"a group of size {size} is above {group_size}")
        for made in self._sets.values():
            others += self._measure([each.weight for each in made.actions.actions])
        if limits.size and size + others > limits.size:
            raise self._error(Code.RESOURCE_EXHAUSTED, f"is full ({others + size} of {limits.size})")

    def _measure(self, weights: Sequence[int]) -> int:
        return len(weights) if self._limits.by_members else sum(weights)

    def _member(self, number: int) -> _Member:
        if number not in self._members:
            raise self._error(Code.NOT_FOUND, f"has no member {number}")
        return self._members[number]

    def _group(self, number: int) -> _Group:
        if number not in self._groups:
            raise self._error(Code.NOT_FOUND, f"has no group {number}")
        return self._groups[number]

    def _error(self, code: Code, message: str) -> ControlError:
        return ControlError(code, f"action profile {self._profile.name}: {message}")
