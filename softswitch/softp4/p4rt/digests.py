# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's digests (specification 9.7), without I/O: which lists must be sent when.

A message that a controller was sent and has not acknowledged is held back when a packet tells it again, up to
a time. Lists keep the order of the packets.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from softp4.errors import Code, ControlError
from softp4.p4rt.p4info_objects import DigestInfo
from softp4.p4runtime.schema import p4runtime_pb2
from softp4.state.digests import Digest

Message = Any
"""A P4Runtime message; the stubs carry no types."""

_USUAL: Final = 1024  # messages of a list where the controller sets no limit, as in BMv2
_MOST: Final = 8192  # messages of any list: what clients receive, and what waits, has its limits
_MOST_HELD: Final = 1 << 16  # unacknowledged messages remembered for one digest; then the oldest list is not
_UPDATE: Final = p4runtime_pb2.Update

_Values = tuple[int, ...]


@dataclass
class _Sent:
    time: int
    values: tuple[_Values, ...]


@dataclass
class _State:
    """One digest. `waiting` is the next list, begun at `since`; `sent` what is not acknowledged."""

    config: Message | None = None
    waiting: dict[_Values, None] = field(default_factory=dict)
    since: int = 0
    sent: OrderedDict[int, _Sent] = field(default_factory=OrderedDict)
    held: set[_Values] = field(default_factory=set)
    last_list: int = 0


class DigestLists:
    """The digests of one program, as a controller configures them. Not thread-safe: its owner locks.

    Times are nanoseconds of any clock that does not go back.

    Args:
        digests: P4Info's, by id.
        known: the names of the program's digests.
    """

    def __init__(self, digests: Mapping[int, DigestInfo], known: Set[str]) -> None:
        self._info = digests
        self._known = known
        self._ids = {info.name: number for number, info in digests.items()}
        self._state = {number: _State() for number in digests}
        self._ready: list[Message] = []

    # -- DigestEntry -------------------------------------------------------------------------------

    def write(self, update: int, entry: Message) -> None:
        """Apply an update of a DigestEntry. Raises ControlError; then nothing has changed."""
        info, state = self._find(entry.digest_id, Code.NOT_FOUND)
        if update == _UPDATE.INSERT and state.config is not None:
            raise ControlError(Code.ALREADY_EXISTS, f"digest {info.name} is configured already")
        if update != _UPDATE.INSERT and state.config is None:
            raise ControlError(Code.NOT_FOUND, f"digest {info.name} is not configured")
        if update == _UPDATE.DELETE:
            self._state[entry.digest_id] = _State(last_list=state.last_list)
            return
        config = entry.config
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise ControlError(
                Code.INVALID_ARGUMENT, f"digest {info.name}: timeouts and sizes cannot be negative"
            )
        if info.encode is None:
            raise ControlError(Code.UNIMPLEMENTED, f"digest {info.name}: {info.obstacle}")
        if info.name not in self._known:
            raise ControlError(
                Code.UNIMPLEMENTED,
                f"digest {info.name}: the program has it by another name (as p4c does with a tuple's)",
            )
        state.config = p4runtime_pb2.DigestEntry.Config()
        state.config.CopyFrom(config)

    def read(self, wanted: Message) -> Iterator[Message]:
        """Yield the DigestEntry messages that a read selects: with id 0, all. Raises ControlError
        NOT_FOUND.
        """
        if wanted.digest_id:
            info, state = self._find(wanted.digest_id, Code.NOT_FOUND)
            if state.config is None:
                raise ControlError(Code.NOT_FOUND, f"digest {info.name} is not configured")
        for number in [wanted.digest_id] if wanted.digest_id else list(self._state):
            config = self._state[number].config
            if config is not None:
                yield p4runtime_pb2.DigestEntry(digest_id=number, config=config)

    def carry_over(self, old: "DigestLists") -> None:
        """Configure the digests as they were under another program. Raises ControlError."""
        for entry in old.read(p4runtime_pb2.DigestEntry()):
            self.write(_UPDATE.INSERT, entry)

    # -- lists -------------------------------------------------------------------------------------

    def add(self, digest: Digest, now: int) -> None:
        """Take a digest that the program has sent."""
        number = self._ids.get(digest.name)
        state = self._state[number] if number is not None else None
        if number is None or state is None or state.config is None:
            return
        _forget_old(state, now)
        if digest.values in state.held or digest.values in state.waiting:
            return
        if not state.waiting:
            state.since = now
        state.waiting[digest.values] = None
        if not state.config.max_timeout_ns or len(state.waiting) >= _limit(state):
            self._finish(number, state, now)

    def due(self, now: int) -> list[Message]:
        """Return the DigestList messages to be sent by now, without timestamps."""
        for number, state in self._state.items():
            if state.config is None:
                continue
            _forget_old(state, now)
            late = now - state.since >= state.config.max_timeout_ns
            while state.waiting and (late or len(state.waiting) >= _limit(state)):
                self._finish(number, state, now)
        ready, self._ready = self._ready, []
        return ready

    def acknowledge(self, ack: Message) -> None:
        """Take a DigestListAck: the digests of this list may be sent again.

        A list that was acknowledged, or forgotten, before is no error. Raises ControlError INVALID_ARGUMENT
        for an unknown digest, NOT_FOUND for a list that never was.
        """
        info, state = self._find(ack.digest_id, Code.INVALID_ARGUMENT)
        if not 1 <= ack.list_id <= state.last_list:
            raise ControlError(Code.NOT_FOUND, f"digest {info.name} has sent no list {ack.list_id}")
        self.forget(ack.digest_id, ack.list_id)

    def forget(self, digest_id: int, list_id: int) -> None:
        """Forget a list that did not get through, or is done with."""
        state = self._state[digest_id]
        sent = state.sent.pop(list_id, None)
        if sent is not None:
            state.held.difference_update(sent.values)

    def _finish(self, number: int, state: _State, now: int) -> None:
        assert state.config is not None
        info = self._info[number]
        assert info.encode is not None
        state.last_list += 1
        values = tuple(islice(state.waiting, _limit(state)))
        for each in values:
            del state.waiting[each]
        message = p4runtime_pb2.DigestList(digest_id=number, list_id=state.last_list)
        message.data.extend(info.encode(iter(each)) for each in values)
        self._ready.append(message)
        if not state.config.ack_timeout_ns:
            return
        state.sent[state.last_list] = _Sent(now, values)
        state.held.update(values)
        while len(state.held) > _MOST_HELD:
            self.forget(number, next(iter(state.sent)))

    def _find(self, number: int, code: Code) -> tuple[DigestInfo, _State]:
        if number not in self._info:
            raise ControlError(code, f"P4Info has no digest with id {number}")
        return self._info[number], self._state[number]


def _limit(state: _State) -> int:
    assert state.config is not None
    return min(state.config.max_list_size or _USUAL, _MOST)


def _forget_old(state: _State, now: int) -> None:
    assert state.config is not None
    while state.sent:
        number, sent = next(iter(state.sent.items()))  # the oldest
        if now - sent.time < state.config.ack_timeout_ns:
            break
        state.held.difference_update(sent.values)
        del state.sent[number]


def write_digest(pipeline: Message, update: int, message: Message) -> None:
    """Apply an INSERT, MODIFY or DELETE of a DigestEntry. Raises ControlError."""
    pipeline.digests.write(update, message)


def read_digests(pipeline: Message, wanted: Message) -> Iterator[Message]:
    """Yield the DigestEntry messages that a read selects. Raises ControlError."""
    yield from pipeline.digests.read(wanted)
