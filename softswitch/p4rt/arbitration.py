# SPDX-License-Identifier: Apache-2.0
"""Who may write: P4Runtime's primary and backup clients (specification 5), without I/O.

Of the streams open for a role, the one with the highest election id is primary. When it leaves or steps
down, the next one is promoted, as BMv2 does, so that the switch is never left without a controller while
one is connected.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from softswitch.errors import Code, ControlError

MAX_STREAMS: Final = 16
"""Streams open at a time, over all roles."""


@dataclass(frozen=True)
class Notice:
    """What one stream is told about its role.

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
        ranked = [(election, stream) for stream, election in self.members.items() if election is not None]
        return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


class Arbiter:
    """Keeps the streams of one device and their roles. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role] = {}
        self._role_of: dict[Hashable, str] = {}

    def update(self, stream: Hashable, role: str, election_id: int | None) -> list[Notice]:
        """A stream's MasterArbitrationUpdate. An ``election_id`` of None can never be primary.

        Returns whom to tell what. Raises ControlError when the stream is to be ended:
        FAILED_PRECONDITION for a change of role, INVALID_ARGUMENT for an election id in use,
        RESOURCE_EXHAUSTED for one stream too many.
        """
        known = self._role_of.get(stream)
        if known is not None and known != role:
            raise ControlError(Code.FAILED_PRECONDITION, f"this stream has role {known!r}, not {role!r}")
        if known is None and len(self._role_of) >= MAX_STREAMS:
            raise ControlError(Code.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} controllers are connected already")
        state = self._roles.setdefault(role, _Role())
        if election_id is not None and any(
            election == election_id and other != stream for other, election in state.members.items()
        ):
            raise ControlError(
                Code.INVALID_ARGUMENT,
                f"election id {election_id} is used by another controller of role {role!r}",
            )
        before = self._state_of(role)
        self._role_of[stream] = role
        state.members[stream] = election_id
        return self._notices(role, before, stream)

    def leave(self, stream: Hashable) -> list[Notice]:
        """A stream ended. Returns whom to tell what."""
        role = self._role_of.pop(stream, None)
        if role is None:
            return []
        before = self._state_of(role)
        del self._roles[role].members[stream]
        return self._notices(role, before, None)

    def primary(self, role: str) -> Hashable | None:
        """The primary stream of a role, if it has one."""
        return self._roles[role].primary() if role in self._roles else None

    def primaries(self) -> list[Hashable]:
        """The primary streams of all roles."""
        return [stream for role in self._roles if (stream := self.primary(role)) is not None]

    def check_writer(self, role: str, election_id: int) -> None:
        """Raises ControlError unless ``election_id`` is that of the role's primary."""
        if role and role not in self._roles:
            raise ControlError(Code.NOT_FOUND, f"no controller has taken role {role!r}")
        primary = self.primary(role)
        if primary is None:
            raise ControlError(
                Code.PERMISSION_DENIED,
                "there is no primary controller: open a stream and send an election id",
            )
        elected = self._roles[role].members[primary]
        if elected != election_id:
            raise ControlError(
                Code.PERMISSION_DENIED, f"election id {election_id} is not the primary's ({elected})"
            )

    def _state_of(self, role: str) -> tuple[Hashable | None, int | None]:
        state = self._roles[role]
        primary = state.primary()
        return primary, None if primary is None else state.members[primary]

    def _notices(
        self, role: str, before: tuple[Hashable | None, int | None], sender: Hashable | None
    ) -> list[Notice]:
        """Everybody hears of a change of primary, otherwise only the sender hears back."""
        state = self._roles[role]
        primary, election = after = self._state_of(role)
        if election is not None:
            state.highest = election
        told = state.members if after != before else [s for s in state.members if s == sender]
        backup = Code.NOT_FOUND if primary is None else Code.ALREADY_EXISTS
        return [Notice(s, 0 if s == primary else int(backup), role, state.highest) for s in told]
