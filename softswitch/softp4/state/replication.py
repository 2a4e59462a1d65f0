# SPDX-License-Identifier: Apache-2.0
"""Replication: multicast groups and clone sessions."""

from collections.abc import Sequence

from softp4.errors import Code, ControlError
from softp4.runtime.bindings import NativeSwitch, exclusive
from softp4.state.entry import CloneSession, Replica


class MulticastGroups:
    """The multicast groups of a switch, by number. Thread-safe."""

    def __init__(self, native: NativeSwitch) -> None:
        self._native = native
        self._groups: dict[int, tuple[Replica, ...]] = {}

    @exclusive
    def set(self, group: int, replicas: Sequence[Replica | tuple[int, int]]) -> None:
        """Make or replace group `group` (1 to 65535): copies leave in the order given."""
        if not 1 <= group <= 0xFFFF:
            raise ControlError(Code.INVALID_ARGUMENT, f"multicast group {group} is not in 1..65535")
        wanted = _checked(replicas)
        self._native.set_group(group, _pairs(wanted))
        self._groups[group] = wanted

    @exclusive
    def delete(self, group: int) -> None:
        """Remove a group. NOT_FOUND without one."""
        if group not in self._groups:
            raise ControlError(Code.NOT_FOUND, f"no multicast group {group}")
        self._native.clear_group(group)
        del self._groups[group]

    @exclusive
    def all(self) -> dict[int, tuple[Replica, ...]]:
        """Return all groups by number."""
        return dict(self._groups)


class CloneSessions:
    """The clone sessions of a switch, by number. Thread-safe."""

    def __init__(self, native: NativeSwitch) -> None:
        self._native = native
        self._sessions: dict[int, CloneSession] = {}

    @exclusive
    def set(
        self, session: int, replicas: Sequence[Replica | tuple[int, int]], packet_length: int = 0
    ) -> None:
        """Make or replace session `session` (0 to 32767).

        Args:
            session: what the program passes to clone().
            replicas: where copies go, in order.
            packet_length: bytes a copy keeps; 0 keeps all.
        """
        if not 0 <= session <= 0x7FFF:
            raise ControlError(Code.INVALID_ARGUMENT, f"clone session {session} is not in 0..32767")
        wanted = CloneSession(_checked(replicas), packet_length)
        self._native.set_session(session, _pairs(wanted.replicas), packet_length)
        self._sessions[session] = wanted

    @exclusive
    def delete(self, session: int) -> None:
        """Remove a session; what is cloned to it from then on is not copied. NOT_FOUND without one."""
        if session not in self._sessions:
            raise ControlError(Code.NOT_FOUND, f"no clone session {session}")
        self._native.clear_session(session)
        del self._sessions[session]

    @exclusive
    def all(self) -> dict[int, CloneSession]:
        """Return all sessions by number."""
        return dict(self._sessions)


def _checked(replicas: Sequence[Replica | tuple[int, int]]) -> tuple[Replica, ...]:
    wanted = tuple(each if isinstance(each, Replica) else Replica(*each) for each in replicas)
    for replica in wanted:
        if not (0 <= replica.port < 1 << 32 and 0 <= replica.rid < 1 << 16):
            raise ControlError(Code.INVALID_ARGUMENT, f"{replica} needs a 32-bit port and a 16-bit rid")
    return wanted


def _pairs(replicas: Sequence[Replica]) -> list[tuple[int, int]]:
    return [(replica.port, replica.rid) for replica in replicas]
