# SPDX-License-Identifier: Apache-2.0
"""A control plane that does anything, at any time, to a switch whose program it knows."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from softp4.errors import ControlError
from softp4.program.types import Action, MatchKind, Table, TableKey
from softp4.runtime.queueing import Queueing
from softp4.state.entry import (
    ByGroup,
    ByMember,
    Count,
    Entry,
    Exact,
    Group,
    GroupMember,
    Lpm,
    Match,
    Member,
    MeterConfig,
    Optional,
    Range,
    Ternary,
    Via,
)
from softp4.switch import Switch
from tests.differential.vocabulary import Vocabulary

PORTS: Final = (0, 1, 2, 3, 5, 13, 255, 510, 511, 600)
_NUMBERS: Final = range(1, 22)  # of groups and sessions


class RandomControl:
    """Each `change` is one random call; a ControlError is as good as a success."""

    def __init__(self, switch: Switch, vocabulary: Vocabulary, rng: random.Random, *, trace: bool) -> None:
        self._switch = switch
        self._program = switch.program
        self._vocabulary = vocabulary
        self._rng = rng
        self._tables = list(self._program.tables.values())
        self._now = 0
        tables = [self._insert] * 6 + [self._modify, self._delete, self._default, self._read_entries]
        cells = [self._register, self._counter, self._meter, self._digests, self._idle]
        traffic = [self._group, self._group, self._session, self._session, self._queueing, self._queues]
        if self._program.action_profiles:
            tables += [self._member, self._member, self._member, self._members_group, self._members_group]
        self._calls: list[Callable[[], object]] = [*(tables if self._tables else ()), *cells, *traffic]
        if trace:
            self._calls += [self._start_trace, self._stop_trace, switch.recorder.read]

    def change(self, now: int) -> None:
        """One call."""
        self._now = now
        try:
            self._rng.choice(self._calls)()
        except ControlError as error:
            assert str(error)

    # -- tables --------------------------------------------------------------------------------------

    def _insert(self) -> None:
        table = self._rng.choice(self._tables)
        self._switch.table(table.name).insert(self._entry(table))

    def _modify(self) -> None:
        table, entry = self._existing()
        made = self._entry(table)
        self._switch.table(table.name).modify(replace(made, key=entry.key, priority=entry.priority))

    def _delete(self) -> None:
        table, entry = self._existing()
        self._switch.table(table.name).delete(entry.key, entry.priority)

    def _default(self) -> None:
        table = self._rng.choice(self._tables)
        if self._rng.random() < 0.3:
            self._switch.table(table.name).reset_default()
        else:
            self._switch.table(table.name).set_default(*self._call(table))

    def _read_entries(self) -> None:
        table, entry = self._existing()
        self._switch.table(table.name).count(entry.key, entry.priority)
        self._switch.table(table.name).set_count(entry.key, Count(1, 2), entry.priority)

    def _existing(self) -> tuple[Table, Entry]:
        table = self._rng.choice(self._tables)
        entries = self._switch.table(table.name).entries()
        return table, self._rng.choice(entries) if entries else self._entry(table)

    def _entry(self, table: Table) -> Entry:
        key = tuple(self._match(field) for field in table.keys)
        priority = self._rng.choice((0, 1, 5, 1 << 20)) if table.prioritised else 0
        timeout = self._rng.choice((0, 1, 10**6)) if table.ages else 0
        if table.profile is not None and self._rng.random() < 0.8:
            return Entry(key, priority=priority, timeout_ns=timeout, via=self._via())
        return Entry(key, *self._call(table), priority, timeout_ns=timeout)

    def _call(self, table: Table) -> tuple[str, tuple[int, ...]]:
        if not table.actions:
            return "nothing", ()
        return self._action_call(self._program.actions[self._rng.choice(table.actions)])

    def _action_call(self, action: Action) -> tuple[str, tuple[int, ...]]:
        ports = self._rng.random() < 0.8
        return action.name, tuple(
            self._rng.choice(PORTS) % (1 << each.bits)
            if each.bits == 9 and ports
            else self._vocabulary.value(each.bits)
            for each in action.params
        )

    def _match(self, field: TableKey) -> Match:
        rng, bits = self._rng, field.bits
        value = self._vocabulary.value(bits)
        match field.kind:
            case MatchKind.EXACT:
                return Exact(value)
            case MatchKind.LPM:
                return Lpm(value, rng.choice((0, 1, bits // 2, bits, bits)))
            case MatchKind.RANGE:
                return Range(*sorted((value, self._vocabulary.value(bits))))
            case _:
                if rng.random() < 0.2:
                    return Optional(rng.choice((None, value)))
                full = (1 << bits) - 1
                return Ternary(value, rng.choice((0, full, full, full & ~1, rng.getrandbits(bits))))

    # -- action profiles -----------------------------------------------------------------------------

    def _via(self) -> Via:
        return self._rng.choice((ByMember(self._identity()), ByGroup(self._identity())))

    def _identity(self) -> int:
        return self._rng.randrange(6)

    def _member(self) -> None:
        rng = self._rng
        name = rng.choice(list(self._program.action_profiles))
        profile = self._switch.profile(name)
        actions = list(self._program.profile_actions(name).values())
        member = Member(self._identity(), *self._action_call(rng.choice(actions)))
        match rng.randrange(4):
            case 0:
                profile.modify_member(member)
            case 1:
                profile.delete_member(member.id)
            case _:
                profile.insert_member(member)
        profile.members()

    def _members_group(self) -> None:
        rng = self._rng
        name = rng.choice(list(self._program.action_profiles))
        profile = self._switch.profile(name)
        members = {self._identity(): rng.choice((1, 1, 3, 100)) for _ in range(rng.randrange(4))}
        group = Group(self._identity(), tuple(GroupMember(*each) for each in members.items()))
        match rng.randrange(4):
            case 0:
                profile.modify_group(group)
            case 1:
                profile.delete_group(group.id)
            case _:
                profile.insert_group(group)
        self._switch.set_port_up(rng.choice(PORTS), rng.random() < 0.8)

    # -- cells ---------------------------------------------------------------------------------------

    def _register(self) -> None:
        for name, about in self._program.registers.items():
            index = self._rng.choice((0, about.size - 1, about.size, self._rng.randrange(about.size)))
            self._switch.register(name).write(index, self._vocabulary.value(about.bits))
            self._switch.register(name).read(index)

    def _counter(self) -> None:
        for name, about in self._program.counters.items():
            index = self._rng.choice((0, about.size, max(about.size - 1, 0)))
            self._switch.counter(name).write(index, Count(self._rng.getrandbits(64), 3))
            self._switch.counter(name).read(index)

    def _meter(self) -> None:
        for name, about in self._program.meters.items():
            cir, burst = self._rng.choice((0, 1, 10**6, 1 << 40)), self._rng.choice((0, 1500, 1 << 30))
            config = self._rng.choice((None, MeterConfig(cir, burst, cir + 1, burst)))
            if about.table is None:
                index = self._rng.choice((None, 0, about.size - 1, about.size))
                self._switch.meter(name).configure(config, index)
                self._switch.meter(name).marked(index or 0)
            else:
                table = self._program.tables[about.table]
                for entry in self._switch.table(table.name).entries()[:1]:
                    self._switch.table(table.name).set_meter(entry.key, config, entry.priority)

    def _digests(self) -> None:
        self._switch.digests.take()

    def _idle(self) -> None:
        self._switch.expired(self._now)

    # -- traffic -------------------------------------------------------------------------------------

    def _replicas(self) -> list[tuple[int, int]]:
        count = self._rng.choice((0, 1, 2, 3, 40))
        return [(self._rng.choice(PORTS), self._rng.choice((0, 1, 13, 0xFFFF))) for _ in range(count)]

    def _group(self) -> None:
        number = self._rng.choice(_NUMBERS)
        if self._rng.random() < 0.8:
            self._switch.multicast_groups.set(number, self._replicas())
        else:
            self._switch.multicast_groups.delete(number)

    def _session(self) -> None:
        number = self._rng.choice(_NUMBERS)
        if self._rng.random() < 0.8:
            length = self._rng.choice((0, 0, 1, 20, 5000))
            self._switch.clone_sessions.set(number, self._replicas(), length)
        else:
            self._switch.clone_sessions.delete(number)

    def _queueing(self) -> None:
        rng, port = self._rng, self._rng.choice((*PORTS[:-1], self._rng.randrange(512)))
        if rng.random() < 0.4:
            self._switch.queues(port).clear()
            return
        self._switch.queues(port).set(
            Queueing(
                rate_bps=rng.choice((None, 1, 10**6, 10**9, 1 << 40)),
                rate_pps=rng.choice((None, None, 1, 1000)),
                burst_bytes=rng.choice((0, 1500)),
                depth_packets=rng.choice((0, 1, 64)),
                depth_bytes=rng.choice((None, 0, 100, 10000)),
            ),
        )

    def _queues(self) -> None:
        self._switch.queues(self._rng.choice(PORTS[:-1])).statistics()

    # -- traces --------------------------------------------------------------------------------------

    def _start_trace(self) -> None:
        ports = self._rng.choice((None, [1, 2, 3]))
        self._switch.recorder.start(ports, self._rng.choice((None, 1, 100)))

    def _stop_trace(self) -> None:
        self._switch.recorder.stop()
