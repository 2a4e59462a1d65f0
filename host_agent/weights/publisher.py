# SPDX-License-Identifier: Apache-2.0
"""A publisher without I/O: messages to all in order, repairs to those who ask, and news of what there is.

Each packet of a new message goes out once, to all; that with the digest goes when the digest is known. What
a subscriber lacks it asks for; a packet that several ask for within a moment goes to all again, else to the
one. Repairs take at most every other packet, so a subscriber with a bad path slows nobody more than that. The
last updates are kept (the journal). A subscriber that lacks an older one gets a snapshot, which is made when
it is first asked for and kept while somebody fetches it.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from weir.host_agent.weights.pace import Pace, Rates
from weir.host_agent.weights.packets import (
    ASK_BITS,
    PACKET_BYTES,
    Datagrams,
    DataWriter,
    Name,
    Packet,
    State,
    Verdict,
    decode,
    indices,
    packets_of,
)
from weir.wire.definition import WEIGHTS_DATA, WeightsType

Address = TypeVar("Address", bound=Hashable)

HOLD_NS: Final = 5_000_000
"""How long an asked packet waits for others who ask for it, too."""

_DEAF_NS: Final = 20_000_000
"""How long after a packet was repaired another question for it is taken for one that crossed it."""

_FETCH_NS: Final = 500_000_000
"""While several subscribers have asked for packets of a snapshot within this, all get them."""

_UNUSED_NS: Final = 2_500_000_000
"""For so long somebody who fetches an older snapshot may be silent; then a newer one is made for the next."""

_SNAPSHOT_NS: Final = 5_000_000_000
_NEWS_NS: Final = (0, 20_000_000, 100_000_000, 500_000_000)
"""When the state is told after a message was sent; from then on every HEARTBEAT_NS."""

HEARTBEAT_NS: Final = 1_000_000_000
_MOST_REPAIRS: Final = 1 << 16
_MOST_ASKERS: Final = 1 << 12


class _Message:
    """A message that is kept.

    Attributes:
        digest: of the version; None: not known yet.
        packets: of the code, and one for the digest.
        sent: packets that went to all.
        repaired: when a packet was repaired last.
    """

    def __init__(self, code: bytes, digest: bytes | None) -> None:
        self._code = np.frombuffer(code, np.uint8)
        self.digest = digest
        self.packets = packets_of(len(code)) + 1
        self.sent = 0
        self.repaired: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the code."""
        return self._code.size

    @property
    def done(self) -> bool:
        """True once all packets went to all."""
        return self.sent == self.packets

    def run(self, first: int, most: int) -> npt.NDArray[np.uint8]:
        """Return the data of some packets that follow one another; empty: that is not known yet."""
        if first < self.packets - 1:
            return self._code[first * WEIGHTS_DATA : (first + most) * WEIGHTS_DATA]
        return np.frombuffer(self.digest or b"", np.uint8)


@dataclass
class _Repair(Generic[Address]):
    """A packet to be sent again. whose: the one who asked for it; None: several."""

    whose: Address | None
    due: int


class Publisher(Generic[Address]):
    """One publisher's part of the protocol.

    Args:
        job, key: of the controller's job.
        layout: fingerprint of the tensors.
        snapshot: returns the code and the digest of a snapshot of the newest version; None: not now.
        journal_bytes: of updates kept beyond those that are being sent.
        rates: of sending.
    """

    def __init__(
        self,
        job: int,
        key: bytes,
        layout: bytes,
        snapshot: Callable[[], tuple[bytes, bytes] | None],
        *,
        journal_bytes: int = 256 << 20,
        rates: Rates | None = None,
    ) -> None:
        self.job, self._key, self._layout = job, key, layout
        self._writer = DataWriter(job, key)
        self._make_snapshot, self._journal_bytes = snapshot, journal_bytes
        self.pace = Pace(rates or Rates())
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.newest = 1
        """The newest version. The first is no update: it can be had as a snapshot."""
        self._journal: OrderedDict[int, _Message] = OrderedDict()
        self._snapshot: tuple[int, _Message] | None = None
        self._snapshot_used = 0
        self._unsent: deque[int] = deque()
        self._repairs: OrderedDict[tuple[Name, int], _Repair[Address]] = OrderedDict()
        self._answers: OrderedDict[Address, None] = OrderedDict()  # who must be told the state
        self.known: OrderedDict[Address, int] = OrderedDict()
        """The version that each subscriber had when it asked last."""
        self._fetchers: dict[Address, int] = {}  # who fetches a snapshot, and when each asked last
        self._news: deque[int] = deque((0,))
        self._fell = 0, 0, 0  # when the rate fell, and what would have gone next
        self._repair_next, self._repaired = False, 1  # packets that the last repair had

    def publish(self, code: bytes, now: int, digest: bytes | None = None) -> int:
        """Send the update to the next version to all; return that version's number.

        Args:
            code: of the update.
            now: the time.
            digest: of the version; None: ``seal`` says it later.
        """
        self.newest += 1
        self._journal[self.newest] = _Message(code, digest)
        self._unsent.append(self.newest)
        self._shorten(now)
        self.pace.room(now)
        return self.newest

    def seal(self, digest: bytes) -> None:
        """Say the newest version's digest."""
        self._journal[self.newest].digest = digest

    @property
    def _lacks_digest(self) -> bool:
        """True if nothing new can go before ``seal``."""
        message = self._journal[self._unsent[0]]
        return message.digest is None and message.sent == message.packets - 1

    @property
    def backlog(self) -> int:
        """Bytes of updates that were not sent yet."""
        unsent = (self._journal[number] for number in self._unsent)
        return sum(max(0, message.nbytes - message.sent * WEIGHTS_DATA) for message in unsent)

    @property
    def oldest(self) -> int:
        """The oldest update that is kept, or the one that comes next."""
        return next(iter(self._journal), self.newest + 1)

    def _shorten(self, now: int) -> None:
        """Forget the oldest updates beyond what the journal holds."""
        total = sum(message.nbytes for message in self._journal.values())
        while total > self._journal_bytes and len(self._journal) > 1 and self.oldest not in self._unsent:
            _, message = self._journal.popitem(last=False)
            total -= message.nbytes
            self.counts["forgotten"] += 1
        if self._snapshot is not None:
            idle = now - self._snapshot_used > _SNAPSHOT_NS
            if idle or self._snapshot[0] + 1 < self.oldest:
                self._snapshot = None

    # ---- packets in

    def on_packet(self, payload: bytes, now: int, source: Address) -> Verdict:
        """Take in what a subscriber at ``source`` sent."""
        verdict = self._take_in(payload, now, source)
        self.verdicts[verdict] += 1
        return verdict

    def _take_in(self, payload: bytes, now: int, source: Address) -> Verdict:
        packet = decode(payload, self.job, self._key)
        if isinstance(packet, Verdict):
            return packet
        if packet.type is not WeightsType.ASK or 8 * len(packet.data) > ASK_BITS:
            return Verdict.MALFORMED
        self.known[source] = packet.count
        self.known.move_to_end(source)
        while len(self.known) > _MOST_ASKERS:
            self.known.popitem(last=False)
        message = self._wanted(packet, now)
        if message is None:
            self._answers[source] = None
            return Verdict.ACCEPTED
        name = packet.name
        lost, alone = 0, True
        if name.snapshot:
            self._fetchers[source] = now
            self._fetchers = {who: when for who, when in self._fetchers.items() if now - when < _FETCH_NS}
            alone = len(self._fetchers) == 1
        for index in indices(packet.index, packet.data):
            if index >= message.packets or (not name.snapshot and index >= message.sent):
                continue
            key = name, index
            waiting = self._repairs.get(key)
            if waiting is not None:
                if waiting.whose != source:
                    waiting.whose = None
                    lost += self._counts(name, index, None)
                continue
            before = message.repaired.get(index)
            if (before is not None and now - before < _DEAF_NS) or len(self._repairs) >= _MOST_REPAIRS:
                continue
            lost += self._counts(name, index, before)
            self._repairs[key] = _Repair(source if alone else None, now + HOLD_NS)
        if lost:
            self.pace.lost(source, lost)
            self.counts["lost"] += lost
        return Verdict.ACCEPTED

    def _counts(self, name: Name, index: int, repaired: int | None) -> bool:
        """Return whether a lost packet was sent at the present rate, so after the last fall of the rate."""
        when, number, first = self._fell
        if repaired is not None:
            return repaired >= when
        return not name.snapshot and (name.number, index) >= (number, first)

    @property
    def _position(self) -> tuple[int, int]:
        """Version and number of the packet that goes to all next."""
        number = self._unsent[0] if self._unsent else self.newest + 1
        return number, self._journal[number].sent if self._unsent else 0

    def _wanted(self, packet: Packet, now: int) -> _Message | None:
        """Return the message that a question is about; None: the answer is the state."""
        if not packet.snapshot:
            return self._journal.get(packet.number) if packet.data else None
        stale = self._snapshot is not None and self._snapshot[0] < self.newest
        if self._snapshot is None or (stale and now - self._snapshot_used > _UNUSED_NS):
            made = self._make_snapshot()
            if made is None:
                return None
            self._snapshot = self.newest, _Message(*made)
            self.counts["snapshots"] += 1
        self._snapshot_used = now
        if self._snapshot[0] != packet.number or not packet.data:
            return None
        return self._snapshot[1]

    # ---- packets out

    def poll(self, now: int) -> tuple[list[Datagrams], int]:
        """Return the datagrams to send now, and when to poll again."""
        if self.pace.turn(now):
            self._fell = now, *self._position
        out: list[Datagrams] = []
        state = None
        for asker in self._answers:
            state = state or self._state()
            out.append(Datagrams.single(state, asker))
        self.counts["answers"] += len(self._answers)
        self._answers.clear()
        while self._news and self._news[0] <= now:
            self._news.popleft()
            if not self._news:
                self._news.append(now + HEARTBEAT_NS)
            out.append(Datagrams.single(self._state(), None))
            self.counts["states"] += 1
        while (room := self.pace.room(now)) > 0:
            found = self._next(now, 1 + int(room // PACKET_BYTES))
            if found is None:
                break
            self.pace.sent(found.payloads.size, found.count)
            out.append(found)
        return out, self._deadline(now)

    def _next(self, now: int, most: int) -> Datagrams | None:
        """Return repairs or packets of a new message, alternately and one for one where there are both."""
        self._repair_next = not self._repair_next
        if not self._repairs:
            return self._new(now, most)
        if self._repair_next:
            return self._repair(now, most) or self._new(now, most)
        return self._new(now, min(most, self._repaired)) or self._repair(now, most)

    def _new(self, now: int, most: int) -> Datagrams | None:
        if not self._unsent:
            return None
        number = self._unsent[0]
        message = self._journal[number]
        found = self._data(Name(number, snapshot=False), message, message.sent, most, None)
        if found is None:
            return None
        message.sent += found.count
        self.counts["sent"] += found.count
        if message.done:
            self._unsent.popleft()
            self._news = deque(now + after for after in _NEWS_NS)
        return found

    def _repair(self, now: int, most: int) -> Datagrams | None:
        while self._repairs:
            (name, first), repair = next(iter(self._repairs.items()))
            if repair.due > now:
                return None
            message = self._find(name)
            count = self._take_repairs(name, first, repair, most)
            if message is None or (found := self._data(name, message, first, count, repair.whose)) is None:
                continue  # forgotten meanwhile: whoever still lacks it asks again, and is told
            message.repaired.update(dict.fromkeys(range(first, first + count), now))
            what = "snapshot" if name.snapshot else "repairs"
            self.counts[f"{what} to {'all' if repair.whose is None else 'one'}"] += count
            if name.snapshot:
                self._snapshot_used = now
            self._repaired = count
            return found
        return None

    def _take_repairs(self, name: Name, first: int, repair: _Repair[Address], most: int) -> int:
        """Take the first repair, and those that follow it and are due for the same, out of the queue; return
        how many these are. The digest's packet is of another size: it goes by itself.
        """
        message = self._find(name)
        end = first + 1 if message is None else max(first + 1, message.packets - 1)
        index = first
        while True:
            del self._repairs[name, index]
            index += 1
            following = self._repairs.get((name, index))
            due = following is not None and (following.whose, following.due) == (repair.whose, repair.due)
            if not due or index == end or index == first + most:
                return index - first

    def _find(self, name: Name) -> _Message | None:
        if not name.snapshot:
            return self._journal.get(name.number)
        kept = self._snapshot
        return kept[1] if kept is not None and kept[0] == name.number else None

    def _data(
        self, name: Name, message: _Message, first: int, most: int, to: Address | None
    ) -> Datagrams | None:
        data = message.run(first, most)
        return self._writer.write(name, message.packets, first, data, to) if data.size else None

    def _state(self) -> bytes:
        sent = self._unsent[0] - 1 if self._unsent else self.newest
        last, whole = self._journal.get(sent), self._snapshot
        state = State(
            sent,
            last.packets if last is not None else 0,
            self.oldest,
            whole[0] if whole is not None else 0,
            whole[1].packets if whole is not None else 0,
            self._layout,
        )
        return state.packet(self.job).encode(self._key)

    def _deadline(self, now: int) -> int:
        times = [now + HEARTBEAT_NS]
        if self._news:
            times.append(self._news[0])
        if self._unsent and not self._lacks_digest:
            times.append(self.pace.next_ns(now))
        if self._repairs:
            due = next(iter(self._repairs.values())).due
            times.append(max(due, self.pace.next_ns(now)))
        return max(now, min(times))
