# SPDX-License-Identifier: Apache-2.0
"""Arbitration: P4Runtime's primary and backup clients (specification 5), without I/O.

The primary of a role is the client whose election id is the highest that the switch has ever seen for that
role. When it leaves or steps down, nobody takes over by itself: a backup becomes primary by asking with an
election id at least as high. So a controller that was replaced, and does not know it yet, can never write
again, whatever happens to the one that replaced it.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from softp4.errors import Code, ControlError

MAX_STREAMS: Final = 16
"""Streams of one role at a time."""
MAX_ROLES: Final = 64
"""Roles that the switch remembers; it never forgets the highest election id of one."""


@dataclass(frozen=True)
class Notice:
    """News for one stream about its role.

    Attributes:
        stream: whom to tell.
        code: 0 (OK): you are primary; ALREADY_EXISTS: another is; NOT_FOUND: nobody is.
        role: the role's name.
        election_id: the highest id seen of a primary, or None when there has been none.
    """

    stream: Hashable
    code: int
    role: str
    election_id: int | None


@dataclass
class _Role:
    members: dict[Hashable, int | None] = field(default_factory=dict)
    highest: int | None = None

    def primary(self) -> Hashable | None:
        if self.highest is None:
            return None
        return next((each for each, election in self.members.items() if election == self.highest), None)


class Arbiter:
    """Keeps the streams of one device and their roles. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {"": _Role()}
        self._role_of: dict[Hashable, str] = {}

    def update(self, stream: Hashable, role: str, election_id: int | None) -> list[Notice]:
        """Return a stream's MasterArbitrationUpdate. An ``election_id`` of None can never be primary.

        Returns whom to tell what, a primary last. Raises ControlError when the stream must be ended:
        FAILED_PRECONDITION for a change of role, INVALID_ARGUMENT for an election id in use,
        RESOURCE_EXHAUSTED for one stream or role too many.
        """
        known = self._role_of.get(stream)
        if known is not None and known != role:
            raise ControlError(Code.FAILED_PRECONDITION, f"this stream has role {known!r}, not {role!r}")
        state = self._joined(role, new=known is None)
        if election_id is not None and any(
            election == election_id and other != stream for other, election in state.members.items()
        ):
            raise ControlError(
                Code.INVALID_ARGUMENT,
                f"election id {election_id} is used by another controller of role {role!r}",
            )
        self._roles[role] = state
        before = state.primary()
        self._role_of[stream] = role
        state.members[stream] = election_id
        claims = election_id is not None and (state.highest is None or election_id >= state.highest)
        if claims:
            state.highest = election_id
        return self._notices(role, state.members if claims or before == stream else [stream])

    def leave(self, stream: Hashable) -> list[Notice]:
        """Return a stream ended. Returns whom to tell what."""
        role = self._role_of.pop(stream, None)
        if role is None:
            return []
        state = self._roles[role]
        was_primary = state.primary() == stream
        del state.members[stream]
        return self._notices(role, state.members) if was_primary else []

    def knows(self, stream: Hashable) -> bool:
        """Return whether the stream has arbitrated."""
        return stream in self._role_of

    def primary(self, role: str) -> Hashable | None:
        """Return the primary stream of a role, if it has one."""
        return self._roles[role].primary() if role in self._roles else None

    def primaries(self) -> list[Hashable]:
        """Return the primary streams of all roles."""
        return [stream for role in self._roles if (stream := self.primary(role)) is not None]

    def check_writer(self, role: str, election_id: int | None) -> None:
        """Raise ControlError unless ``election_id`` is that of the role's primary."""
        if role not in self._roles:
            raise ControlError(Code.NOT_FOUND, f"no controller has taken role {role!r}")
        if self.primary(role) is None:
            raise ControlError(
                Code.PERMISSION_DENIED,
                "there is no primary controller: open a stream and send an election id"
                + self._at_least(self._roles[role].highest),
            )
        elected = self._roles[role].highest
        if elected != election_id:
            given = "a call without election id" if election_id is None else f"election id {election_id}"
            raise ControlError(Code.PERMISSION_DENIED, f"{given} is not the primary's ({elected})")

    @staticmethod
    def _at_least(highest: int | None) -> str:
        return "" if highest is None else f" of at least {highest}, the highest there has been"

    def _joined(self, role: str, *, new: bool) -> _Role:
        """Return the state of a role that a stream is in, or wants to join."""
        state = self._roles.get(role)
        if state is None:
            if len(self._roles) >= MAX_ROLES:
                raise ControlError(
                    Code.RESOURCE_EXHAUSTED, f"the switch already has {MAX_ROLES} roles, the limit"
                )
            return _Role()
        if new and len(state.members) >= MAX_STREAMS:
            raise ControlError(
                Code.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} controllers of role {role!r} are connected already"
            )
        return state

    def _notices(self, role: str, told: Iterable[Hashable]) -> list[Notice]:
        state = self._roles[role]
        primary = state.primary()
        backup = Code.NOT_FOUND if primary is None else Code.ALREADY_EXISTS
        notices = [Notice(s, 0 if s == primary else int(backup), role, state.highest) for s in told]
        return sorted(notices, key=lambda notice: notice.code == 0)
