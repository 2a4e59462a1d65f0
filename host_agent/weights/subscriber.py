# SPDX-License-Identifier: Apache-2.0
"""A subscriber without I/O: it puts messages together, and asks for what it lacks.

Packets of a message come in order, so a gap that stays for a moment is a loss. After it asked for packets, it
asks again when these are there or nothing has come for a while. Messages are handed out in order of their
versions: after version n the update to n + 1, or a snapshot of any later one.
"""

import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from weir.host_agent.weights.packets import (
    ASK_BITS,
    Name,
    Packet,
    State,
    Verdict,
    bitmap,
    decode,
    packets_of,
)
from weir.wire.definition import WEIGHTS_DATA, WeightsType

_GAP_NS: Final = 3_000_000
_FIRST_RTO_NS: Final = 60_000_000
_MOST_RTO_NS: Final = 2_000_000_000
_SILENCE_NS: Final = 3_000_000_000
"""After so long without a word from the publisher, a subscriber asks for the state."""

_AHEAD: Final = 16
"""Versions after the next one of which packets are kept."""

_WINDOW: Final = (64, ASK_BITS)
"""Packets of a snapshot that are asked for at once, at first and at most."""


@dataclass
class _Part:
    """A message of which packets have come."""

    packets: int
    body: bytearray
    there: bytearray  # a byte for each packet: 1 once it came
    received: int = 0
    known: bool = True  # how many packets there are: if not, the first one is asked for
    reach: int = 0  # packets below this were sent: those that are missing were lost
    length: int = 0  # of the body, once the last packet is there
    asked: set[int] = field(default_factory=set)
    moved: int = 0  # when a packet came last, or the first question is due from
    rto: int = _FIRST_RTO_NS
    window: int = _WINDOW[0]

    @property
    def done(self) -> bool:
        return self.known and self.received == self.packets

    @property
    def lost(self) -> int:
        """Packets that were sent and have not come. All that came are below ``reach``."""
        return self.reach - self.received

    def missing(self, most: int) -> list[int]:
        """Return the first packets that were lost, at most this many, that one question covers."""
        found: list[int] = []
        at = self.there.find(0, 0, self.reach)
        while at >= 0 and len(found) < most and at < (found or [at])[0] + ASK_BITS:
            found.append(at)
            at = self.there.find(0, at + 1, self.reach)
        return found


@dataclass(frozen=True)
class Message:
    """A whole message."""

    name: Name
    body: memoryview


class Subscriber:
    """One subscriber's part of the protocol.

    Args:
        job, key: of the publisher's job.
        layout: fingerprint of the tensors here.
        publisher: its address, from which alone packets are taken.
        most_bytes: of a message; longer ones are refused.
        seed: of the moments at which questions are asked, so that not all ask at once.
    """

    def __init__(
        self, job: int, key: bytes, layout: bytes, publisher: Hashable, most_bytes: int, seed: int = 0
    ) -> None:
        self.job, self._key, self._layout, self._publisher = job, key, layout, publisher
        self._most_packets = packets_of(most_bytes)
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.version = 0
        """The version of the last message that was handed out; 0: none."""
        self.state: State | None = None
        self._parts: dict[Name, _Part] = {}
        self._ask_state = 0  # when; asked by itself until something is heard
        self._state_rto = _FIRST_RTO_NS

    # ---- packets in

    def on_packet(self, payload: bytes, now: int, source: Hashable) -> Verdict:
        """Take in what came from ``source``."""
        verdict = self._take_in(payload, now, source)
        self.verdicts[verdict] += 1
        return verdict

    def _take_in(self, payload: bytes, now: int, source: Hashable) -> Verdict:
        if source != self._publisher:
            return Verdict.WRONG_SENDER
        packet = decode(payload, self.job, self._key)
        if isinstance(packet, Verdict):
            return packet
        if packet.type is WeightsType.STATE:
            return self._hear_state(packet, now)
        if packet.type is not WeightsType.DATA or packet.index >= packet.count:
            return Verdict.MALFORMED
        return self._hear_data(packet, now)

    def _hear_state(self, packet: Packet, now: int) -> Verdict:
        state = State.of(packet)
        if isinstance(state, Verdict):
            return state
        if state.layout != self._layout:
            return Verdict.WRONG_LAYOUT
        self._heard(now)
        if self.state is not None and state.newest < self.state.newest:
            return Verdict.DUPLICATE  # overtaken
        self.state = state
        self._plan(now)
        return Verdict.ACCEPTED

    def _hear_data(self, packet: Packet, now: int) -> Verdict:
        name, last = packet.name, packet.index == packet.count - 1
        if name.number <= self.version:
            return Verdict.DUPLICATE
        if packet.count > self._most_packets:
            return Verdict.TOO_LONG
        if not packet.data or (len(packet.data) < WEIGHTS_DATA and not last):
            return Verdict.MALFORMED
        part = self._parts.get(name)
        if (part is None and not self._wants(name)) or not self._has_room(name, packet.count, part):
            return Verdict.NOT_WANTED
        if part is None or not part.known:
            sent = part is not None
            part = self._begin(name, packet.count, now)
            part.reach = packet.count if sent else 0
        if part.packets != packet.count:
            return Verdict.MALFORMED
        self._heard(now)
        if part.there[packet.index]:
            return Verdict.DUPLICATE
        start = packet.index * WEIGHTS_DATA
        part.body[start : start + len(packet.data)] = packet.data
        part.there[packet.index] = 1
        part.received += 1
        part.asked.discard(packet.index)
        if last:
            part.length = start + len(packet.data)
        if not name.snapshot and packet.index >= part.reach:
            part.reach = packet.index + 1
            self._all_sent_before(name.number, now)
        part.moved, part.rto = now, _FIRST_RTO_NS
        return Verdict.ACCEPTED

    def _wants(self, name: Name) -> bool:
        """Return whether packets of a message are worth their memory."""
        if name.snapshot:
            return False  # only the one that was begun, as the state named it
        base = max(self.version, self._fetched())
        return base < name.number <= base + _AHEAD if base else len(self._parts) < _AHEAD

    def _has_room(self, name: Name, packets: int, part: _Part | None) -> bool:
        """Return whether a message may be put together: the next one always, others within a bound."""
        if (part is not None and part.known) or name.number == self.version + 1:
            return True
        return sum(other.packets for other in self._parts.values()) + packets <= 2 * self._most_packets

    def _fetched(self) -> int:
        """Return the version whose snapshot is being fetched; 0: none."""
        return next((name.number for name in self._parts if name.snapshot), 0)

    def _begin(self, name: Name, packets: int, now: int) -> _Part:
        part = _Part(packets, bytearray(packets * WEIGHTS_DATA), bytearray(packets), moved=now)
        self._parts[name] = part
        return part

    def _heard(self, now: int) -> None:
        self._ask_state, self._state_rto = now + _SILENCE_NS, _FIRST_RTO_NS

    def _all_sent_before(self, number: int, now: int) -> None:
        """Note that all packets of updates before this one were sent."""
        for name, part in self._parts.items():
            if not name.snapshot and name.number < number and part.reach < part.packets:
                part.reach, part.moved = part.packets, now

    def _plan(self, now: int) -> None:
        """See to it that all that leads to the newest version is asked for."""
        state = self.state
        assert state is not None
        if self.version >= max(state.newest, 1):
            return
        fetched = self._fetched()
        stale = fetched and (fetched + 1 < state.oldest or fetched < state.snapshot)
        if stale or self._lacks_snapshot(state):
            self._begin_snapshot(state, now)
            fetched = self._fetched()
        base = max(self.version, fetched)
        if not base:
            return
        self._all_sent_before(state.newest + 1, now)
        for number in range(base + 1, min(state.newest, base + _AHEAD) + 1):
            name = Name(number, snapshot=False)
            if name not in self._parts:
                part = self._begin(name, 1, now)
                part.known, part.reach = False, 1

    def _lacks_snapshot(self, state: State | None) -> bool:
        """Return whether no update leads on from the version here, and no snapshot is being fetched."""
        behind = not self.version or (state is not None and self.version + 1 < state.oldest)
        return behind and not self._fetched()

    def _begin_snapshot(self, state: State, now: int) -> None:
        for name in [name for name in self._parts if name.snapshot or name.number <= state.snapshot]:
            del self._parts[name]
        usable = state.snapshot > self.version and state.snapshot + 1 >= state.oldest
        if usable and 0 < state.snapshot_packets <= self._most_packets:
            part = self._begin(Name(state.snapshot, snapshot=True), state.snapshot_packets, now)
            part.reach = part.packets
            self.counts["snapshots"] += 1

    # ---- messages out

    def messages(self) -> list[Message]:
        """Return whole messages in the order of their versions, each once."""
        found = []
        while (message := self._following()) is not None:
            found.append(message)
        return found

    def _following(self) -> Message | None:
        whole = [name for name, part in self._parts.items() if part.done]
        if whole_snapshots := [name for name in whole if name.snapshot]:
            name = max(whole_snapshots)
        else:
            name = Name(self.version + 1, snapshot=False)
            if not self.version or name not in whole:
                return None
        part = self._parts[name]
        self.version = name.number
        for old in [other for other in self._parts if other.number <= name.number]:
            del self._parts[old]
        self.counts["updates" if not name.snapshot else "snapshots used"] += 1
        return Message(name, memoryview(part.body)[: part.length])

    def restart(self) -> None:
        """Forget all: the weights here are not those of any version."""
        self.version, self.state, self._ask_state = 0, None, 0
        self._parts.clear()
        self.counts["restarts"] += 1

    # ---- packets out

    def poll(self, now: int) -> tuple[list[bytes], int]:
        """Return the payloads to send to the publisher now, and when to poll again."""
        out: list[bytes] = []
        times = [now + _SILENCE_NS]
        if self._needs_news():
            self._ask_state = min(self._ask_state, now + self._state_rto)
        if self._ask_state <= now:
            out.append(self._ask(Name(0, snapshot=self._lacks_snapshot(self.state)), 0, b""))
            jitter = self._random.randrange(self._state_rto // 4 + 1)
            self._ask_state = now + self._state_rto + jitter
            self._state_rto = min(2 * self._state_rto, _MOST_RTO_NS)
        times.append(self._ask_state)
        for name, part in self._parts.items():
            if not part.done:
                out += self._ask_for(name, part, now)
                times.append(self._due(part))
        return out, max(now, min(times))

    def _needs_news(self) -> bool:
        """Return whether nothing is under way although something is lacking."""
        newer = self.state is not None and self.state.newest > self.version
        return self._lacks_snapshot(self.state) or (newer and not self._parts)

    def _due(self, part: _Part) -> int:
        if part.asked:
            return part.moved + part.rto
        return part.moved + (_GAP_NS if part.lost else _SILENCE_NS)

    def _ask_for(self, name: Name, part: _Part, now: int) -> list[bytes]:
        if now < self._due(part) and not (name.snapshot and not part.asked):
            return []
        again = bool(part.asked)
        if not part.lost:
            part.moved = now
            return []
        if name.snapshot:
            part.window = max(_WINDOW[0], part.window // 2) if again else min(2 * part.window, _WINDOW[1])
        some = part.missing(part.window if name.snapshot else ASK_BITS)
        part.asked = set(some)
        part.rto = min(2 * part.rto, _MOST_RTO_NS) if again else _FIRST_RTO_NS
        part.moved = now + self._random.randrange(part.rto // 8 + 1)
        self.counts["asked again" if again else "asked"] += len(some)
        return [self._ask(name, some[0], bitmap(some[0], some))]

    def _ask(self, name: Name, index: int, bits: bytes) -> bytes:
        kind = WeightsType.ASK
        return Packet(kind, self.job, name.number, index, self.version, name.snapshot, bits).encode(self._key)
