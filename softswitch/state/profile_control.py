# SPDX-License-Identifier: Apache-2.0
"""The control plane's calls for action profiles: `Switch.profiles`."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from weir.softswitch.errors import Code, ControlError
from weir.softswitch.state.action_profiles import ProfileLimits, ProfileStore
from weir.softswitch.state.entry import Group, Member


class ActionProfiles:
    """The action profiles of a switch, by name: `Switch.profiles`. Thread-safe, as the switch is.

    Each call raises ControlError when it cannot be done, and then changes nothing.
    """

    def __init__(
        self, stores: Mapping[str, ProfileStore], control: threading.RLock, alive: Callable[[], object]
    ) -> None:
        self._stores = stores
        self._control = control
        self._alive = alive

    def insert_member(self, profile: str, member: Member) -> None:
        """Add a member. ALREADY_EXISTS for its id, RESOURCE_EXHAUSTED when the profile is full."""
        with self._open(profile) as store:
            store.insert_member(member)

    def modify_member(self, profile: str, member: Member) -> None:
        """Replace a member's action, for every entry and group that refers to it at once."""
        with self._open(profile) as store:
            store.modify_member(member)

    def delete_member(self, profile: str, member: int) -> None:
        """Remove a member. FAILED_PRECONDITION while an entry or a group refers to it."""
        with self._open(profile) as store:
            store.delete_member(member)

    def members(self, profile: str) -> list[Member]:
        """Return all members in order of insertion."""
        with self._open(profile) as store:
            return store.members()

    def insert_group(self, profile: str, group: Group) -> None:
        """Add a group. RESOURCE_EXHAUSTED when it is larger than its, or the profile's, maximum."""
        with self._open(profile) as store:
            store.insert_group(group)

    def modify_group(self, profile: str, group: Group) -> None:
        """Replace a group's members. Its maximum cannot change; 0 leaves it."""
        with self._open(profile) as store:
            store.modify_group(group)

    def delete_group(self, profile: str, group: int) -> None:
        """Remove a group. FAILED_PRECONDITION while an entry refers to it."""
        with self._open(profile) as store:
            store.delete_group(group)

    def groups(self, profile: str) -> list[Group]:
        """Return all groups in order of insertion."""
        with self._open(profile) as store:
            return store.groups()

    def one_shot(self, profile: str) -> bool:
        """Return whether entries have groups of their own: then there are no members and groups beside
        them.
        """
        with self._open(profile) as store:
            return store.one_shot

    def limit(self, profile: str, limits: ProfileLimits) -> None:
        """Set what a profile can hold from now on."""
        with self._open(profile) as store:
            store.limits = limits

    def set_port_up(self, port: int, up: bool) -> None:
        """Tell whether a port works. All do until told otherwise."""
        with self._control:
            self._alive()
            for store in self._stores.values():
                store.set_port_up(port, up)

    @contextmanager
    def _open(self, name: str) -> Iterator[ProfileStore]:
        with self._control:
            self._alive()
            if name not in self._stores:
                raise ControlError(Code.NOT_FOUND, f"the program has no action profile {name}")
            yield self._stores[name]
