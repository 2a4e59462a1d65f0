# SPDX-License-Identifier: Apache-2.0
"""A subscriber without I/O: it puts messages together, and asks for what it lacks.

Packets of a message come in order, so a gap that stays for a moment is a loss. After it asked for packets,
it asks again when these are there or none of them has come for a while. Messages are handed out in order of
their versions: after version n the update to n + 1, or a snapshot of any later one. The code of a message is
handed out as soon as it is whole, and the digest when that is there, too.
"""

import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from weir.host_agent.transport.arrays import address_of
from weir.host_agent.transport.datagram_batches import Batch, batch_of
from weir.host_agent.weights import native
from weir.host_agent.weights.packets import (
    ASK_BITS,
    DIGEST_BYTES,
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


_FORGET: Final = bytes({native.ASKED: native.MISSING}.get(state, state) for state in range(256))


class _Part:
    """A message of which packets have come.

    Attributes:
        packets: how many there are.
        known: they are: if not, the first one is asked for.
        fields: what C counts of it; reach: packets below this were sent: those that are missing were lost.
        moved: when a packet came that the last question asked for, or any if none is asked for.
        gap: since when packets are known to be lost that no question asked for.
    """

    def __init__(self, job: int, name: Name, packets: int, moved: int) -> None:
        self.packets, self.known, self.moved, self.gap = packets, True, moved, moved
        self.rto, self.window = _FIRST_RTO_NS, _WINDOW[0]
        self._body, self._there = bytearray(packets * WEIGHTS_DATA), bytearray(packets)
        addresses = (address_of(np.frombuffer(each, np.uint8)) for each in (self._body, self._there))
        of = native.Message(job, name.number, name.snapshot, packets)
        self.fields = native.Part(*addresses, of)

    @property
    def done(self) -> bool:
        """True once all is there."""
        return self.known and self.fields.received == self.packets

    @property
    def has_code(self) -> bool:
        """True once all but the digest is there, or all."""
        all_but_one = self.known and self.fields.received == self.packets - 1
        return self.done or (all_but_one and self._there[-1] != native.THERE)

    @property
    def code(self) -> memoryview:
        """The code, once it is there."""
        return memoryview(self._body)[: (self.packets - 2) * WEIGHTS_DATA + self.fields.last_but_one]

    @property
    def digest(self) -> bytes:
        """The digest, once it is there."""
        start = (self.packets - 1) * WEIGHTS_DATA
        return bytes(self._body[start : start + self.fields.last])

    @property
    def lost(self) -> int:
        """Packets that were sent and have not come. All that came are below ``reach``."""
        return int(self.fields.reach - self.fields.received)

    def missing(self, most: int) -> list[int]:
        """Return the first packets that were lost, at most this many, that one question covers. They are
        asked for from now on, and no others.
        """
        if self.fields.asked:
            self._there = self._there.translate(_FORGET)
            self.fields.there = address_of(np.frombuffer(self._there, np.uint8))
        found: list[int] = []
        reach = self.fields.reach
        at = self._there.find(native.MISSING, 0, reach)
        while at >= 0 and len(found) < most and at < (found or [at])[0] + ASK_BITS:
            found.append(at)
            self._there[at] = native.ASKED
            at = self._there.find(native.MISSING, at + 1, reach)
        self.fields.asked = len(found)
        return found


@dataclass(frozen=True)
class Message:
    """A message but for its digest."""

    name: Name
    code: memoryview


@dataclass(frozen=True)
class Digest:
    """The digest of the version that the message before makes."""

    name: Name
    digest: bytes


@dataclass(frozen=True)
class Forgotten:
    """The digest of the message before will not come; a snapshot does, instead."""

    name: Name


Event: TypeAlias = Message | Digest | Forgotten


class Subscriber:
    """One subscriber's part of the protocol.

    Args:
        job, key: of the publisher's job.
        layout: fingerprint of the tensors here.
        publisher: its address, from which alone packets are taken.
        most_bytes: of a message's code; longer ones are refused.
        seed: of the moments at which questions are asked, so that not all ask at once.
    """

    def __init__(
        self, job: int, key: bytes, layout: bytes, publisher: Hashable, most_bytes: int, seed: int = 0
    ) -> None:
        self.job, self._key, self._layout, self._publisher = job, key, layout, publisher
        self._most_packets = packets_of(most_bytes) + 1
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.version = 0
        """The version of the last digest that was handed out; 0: none."""
        self.state: State | None = None
        self._parts: dict[Name, _Part] = {}
        self._filled: Name | None = None  # the message to which packets came last
        self._open: Name | None = None  # the message that was handed out, but for its digest
        self._ask_state = 0  # when; asked by itself until something is heard
        self._state_rto = _FIRST_RTO_NS

    # ---- packets in

    def on_packet(self, payload: bytes, now: int, source: tuple[str, int]) -> Verdict:
        """Take in what came from ``source``."""
        if source != self._publisher:
            verdict = Verdict.WRONG_SENDER
        else:
            verdict = self._take_in(batch_of([payload], source), 0, now)
        self.verdicts[verdict] += 1
        return verdict

    def on_batch(self, batch: Batch, now: int) -> None:
        """Take in packets that came together."""
        if batch.source != self._publisher:
            self.verdicts[Verdict.WRONG_SENDER] += batch.count
            return
        at = 0
        while at < batch.count:
            part = self._parts.get(self._filled) if self._filled is not None else None
            if part is not None and part.known and self._filled is not None:
                stopped, came = self._gather(self._filled, part, batch, at, batch.count, now)
                self.verdicts[Verdict.ACCEPTED] += came
                self.verdicts[Verdict.DUPLICATE] += stopped - at - came
                at = stopped
            if at < batch.count:
                self.verdicts[self._take_in(batch, at, now)] += 1
                at += 1

    def _take_in(self, batch: Batch, at: int, now: int) -> Verdict:
        """Take in one packet."""
        packet = decode(batch.payload(at), self.job, self._key)
        if isinstance(packet, Verdict):
            return packet
        if packet.type is WeightsType.STATE:
            return self._hear_state(packet, now)
        if packet.type is not WeightsType.DATA or packet.index >= packet.count or packet.count < 2:
            return Verdict.MALFORMED
        part = self._part_of(packet, now)
        if isinstance(part, Verdict):
            return part
        _, came = self._gather(packet.name, part, batch, at, at + 1, now)
        self._filled = packet.name
        return Verdict.ACCEPTED if came else Verdict.DUPLICATE

    def _gather(
        self, name: Name, part: _Part, batch: Batch, start: int, end: int, now: int
    ) -> tuple[int, int]:
        """Put packets of a message to their places.

        Returns:
            The place of the first one that is none of it, and how many were not there before.
        """
        fields = part.fields
        before, reach, asked, lost = fields.received, fields.reach, fields.asked, part.lost
        places = batch.places
        stopped = native.library().weir_weights_gather(
            self._key, address_of(batch.memory), address_of(places), start, end, fields
        )
        came = fields.received - before
        if stopped > start:
            self._heard(now)
        if fields.asked < asked or (came and not asked):
            part.moved, part.rto = now, _FIRST_RTO_NS
        if not lost:
            part.gap = now
        if fields.reach > reach and not name.snapshot:
            self._all_sent_before(name.number, now)
        return int(stopped), int(came)

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

    def _part_of(self, packet: Packet, now: int) -> "_Part | Verdict":
        """Return the message, begun if need be, that a packet of data is one of; or why it is refused."""
        name, last = packet.name, packet.index == packet.count - 1
        if name.number <= self.version:
            return Verdict.DUPLICATE
        if packet.count > self._most_packets:
            return Verdict.TOO_LONG
        if not packet.data or (last and len(packet.data) != DIGEST_BYTES):
            return Verdict.MALFORMED
        if len(packet.data) < WEIGHTS_DATA and packet.index < packet.count - 2:
            return Verdict.MALFORMED
        part = self._parts.get(name)
        if (part is None and not self._wants(name)) or not self._has_room(name, packet.count, part):
            return Verdict.NOT_WANTED
        if part is None or not part.known:
            sent = part is not None
            part = self._begin(name, packet.count, now)
            part.fields.reach = packet.count if sent else 0
        return part if part.packets == packet.count else Verdict.MALFORMED

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
        part = _Part(self.job, name, packets, now)
        self._parts[name] = part
        return part

    def _heard(self, now: int) -> None:
        self._ask_state, self._state_rto = now + _SILENCE_NS, _FIRST_RTO_NS

    def _all_sent_before(self, number: int, now: int) -> None:
        """Note that all packets of updates before this one were sent."""
        for name, part in self._parts.items():
            if not name.snapshot and name.number < number and part.fields.reach < part.packets:
                part.gap = part.gap if part.lost else now
                part.fields.reach, part.moved = part.packets, now

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
                part.known, part.fields.reach = False, 1

    def _lacks_snapshot(self, state: State | None) -> bool:
        """Return whether no update leads on from the version here, and no snapshot is being fetched."""
        behind = not self.version or (state is not None and self.version + 1 < state.oldest)
        return behind and not self._fetched()

    def _begin_snapshot(self, state: State, now: int) -> None:
        for name in [name for name in self._parts if name.snapshot or name.number <= state.snapshot]:
            del self._parts[name]
        usable = state.snapshot > self.version and state.snapshot + 1 >= state.oldest
        if usable and 1 < state.snapshot_packets <= self._most_packets:
            part = self._begin(Name(state.snapshot, snapshot=True), state.snapshot_packets, now)
            part.fields.reach = part.packets
            self.counts["snapshots"] += 1

    # ---- messages out

    def messages(self) -> list[Event]:
        """Return messages in the order of their versions, each once, and behind each one its digest."""
        found: list[Event] = []
        while (message := self._following()) is not None:
            found.append(message)
        return found

    def _following(self) -> Event | None:
        if self._open in self._parts:
            return self._digest_of(self._open)
        if self._open is not None:
            forgotten, self._open = Forgotten(self._open), None
            return forgotten
        name = Name(self.version + 1, snapshot=False)
        if whole := [name for name, part in self._parts.items() if name.snapshot and part.has_code]:
            name = max(whole)
        elif not self.version or name not in self._parts or not self._parts[name].has_code:
            return None
        self._open = name
        return Message(name, self._parts[name].code)

    def _digest_of(self, name: Name) -> Digest | None:
        part = self._parts[name]
        if not part.done:
            return None
        self._open, self.version = None, name.number
        for old in [other for other in self._parts if other.number <= name.number]:
            del self._parts[old]
        self.counts["updates" if not name.snapshot else "snapshots used"] += 1
        return Digest(name, part.digest)

    def restart(self) -> None:
        """Forget all: the weights here are not those of any version."""
        self.version, self.state, self._ask_state, self._open = 0, None, 0, None
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
        if part.fields.asked:
            return part.moved + part.rto
        return part.gap + _GAP_NS if part.lost else part.moved + _SILENCE_NS

    def _ask_for(self, name: Name, part: _Part, now: int) -> list[bytes]:
        if now < self._due(part) and not (name.snapshot and not part.fields.asked):
            return []
        again = bool(part.fields.asked)
        if not part.lost:
            part.moved = now
            return []
        if name.snapshot:
            part.window = max(_WINDOW[0], part.window // 2) if again else min(2 * part.window, _WINDOW[1])
        some = part.missing(part.window if name.snapshot else ASK_BITS)
        part.rto = min(2 * part.rto, _MOST_RTO_NS) if again else _FIRST_RTO_NS
        part.gap, part.moved = now, now + self._random.randrange(part.rto // 8 + 1)
        self.counts["asked again" if again else "asked"] += len(some)
        return [self._ask(name, some[0], bitmap(some[0], some))]

    def _ask(self, name: Name, index: int, bits: bytes) -> bytes:
        kind = WeightsType.ASK
        return Packet(kind, self.job, name.number, index, self.version, name.snapshot, bits).encode(self._key)
