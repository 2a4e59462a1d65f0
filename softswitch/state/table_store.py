# SPDX-License-Identifier: Apache-2.0
"""One table as the control plane sees it: entries checked, remembered, and put into the native table."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from weir.softswitch.codegen.keys import entry_words, key_layout, pack_args
from weir.softswitch.errors import Code, ControlError
from weir.softswitch.program.types import Action, ActionCall, FieldMatch, MatchKind, Program, Table, TableKey
from weir.softswitch.runtime.bindings import NativeSwitch, exclusive
from weir.softswitch.state.action_checks import check_args
from weir.softswitch.state.action_profiles import ProfileStore, Reference
from weir.softswitch.state.entry import (
    Count,
    Entry,
    Exact,
    Lpm,
    Marked,
    Match,
    MeterConfig,
    Optional,
    Range,
    Ternary,
)
from weir.softswitch.state.idle import IdleTimes
from weir.softswitch.state.meters import marked_of, meter_words

# BMv2's own priorities are better when smaller. P4Runtime's pivot (in PI) is the greatest int32.
_PIVOT = (1 << 31) - 1
_NO_ACTION = (1 << 32) - 1

_Identity = tuple[tuple[Match, ...], int]


@dataclass
class _Stored:
    entry: Entry
    handle: int
    reference: Reference | None = None


class _Packed(NamedTuple):
    """A key in the words of the native table."""

    key: list[int]
    check: list[int]
    priority: int


class _Data(NamedTuple):
    """Action and arguments in the words of the native table."""

    action: int
    args: list[int]
    reference: Reference | None = None


class TableStore:
    """A table: its entries with their counters, meters and idle times, and its default action.

    Thread-safe. A call that cannot be done raises ControlError and changes nothing.
    """

    def __init__(
        self,
        native: NativeSwitch,
        number: int,
        program: Program,
        table: Table,
        profile: ProfileStore | None,
    ) -> None:
        self._native = native
        self._number = number
        self._program = program
        self._table = table
        self._profile = profile
        self._layout = key_layout(table)
        self._every_bit: list[int] | None = None  # what is compared, if that is the same for all entries
        if all(each.kind is MatchKind.EXACT for each in table.keys):
            self._every_bit = self._layout.pack([(1 << each.bits) - 1 for each in table.keys])
        self._masks = any(each.mask is not None for each in table.keys)
        self._actions = {each.name: each for each in reversed(program.table_actions(table))}
        self._words = entry_words(program, table)
        self._stored: dict[_Identity, _Stored] = {}
        self._idle = IdleTimes(native, number) if table.ages else None
        self._default = table.default
        self._install_default(table.default)
        for each in table.entries:
            call = each.call
            key = self._checked_key(tuple(_constant_match(match) for match in each.key))
            priority = _PIVOT - each.priority if table.prioritised else 0
            self._put(Entry(key, program.actions[call.action].name, call.args, priority))

    # -- entries -----------------------------------------------------------------------------------

    @exclusive
    def insert(self, entry: Entry) -> None:
        """Add an entry. ALREADY_EXISTS for the same key (and priority), RESOURCE_EXHAUSTED when full."""
        self._check_mutable()
        entry = self._checked(entry)
        if (entry.key, entry.priority) in self._stored:
            raise ControlError(Code.ALREADY_EXISTS, f"{self._table.name} already has an entry {entry.key}")
        if len(self._stored) >= self._table.size:
            raise ControlError(
                Code.RESOURCE_EXHAUSTED, f"{self._table.name} is full ({self._table.size} entries)"
            )
        self._put(entry)

    @exclusive
    def modify(self, entry: Entry) -> None:
        """Replace action and arguments of the entry with this key (and priority); counters go on."""
        self._check_mutable()
        entry = self._checked(entry)
        stored = self._find(entry.key, entry.priority)
        data = self._data(entry)
        with self._between_packets():
            self._native.modify(self._number, stored.handle, data.action, data.args)
            self._put_meter(stored.handle, entry.meter)
        if self._idle is not None:
            self._idle.set_timeout(stored.handle, entry.timeout_ns)
        before, stored.entry, stored.reference = stored.reference, entry, data.reference
        self._release(before)

    @exclusive
    def delete(self, key: tuple[Match, ...], priority: int = 0) -> None:
        """Remove the entry with this key (and priority)."""
        self._check_mutable()
        key = self._checked_key(key)
        stored = self._find(key, priority)
        self._native.remove(self._number, stored.handle)
        if self._idle is not None:
            self._idle.end(stored.handle)
        del self._stored[key, priority]
        self._release(stored.reference)

    @exclusive
    def entries(self) -> list[Entry]:
        """Return all entries, constant ones included, in order of insertion."""
        return [stored.entry for stored in self._stored.values()]

    @exclusive
    def entry(self, key: tuple[Match, ...], priority: int = 0) -> Entry:
        """Return the entry with this key (and priority); NOT_FOUND without one."""
        return self._find(key, priority).entry

    @exclusive
    def count(self, key: tuple[Match, ...], priority: int = 0) -> Count:
        """Read the direct counter of an entry."""
        stored = self._counted(key, priority)
        return Count(*self._native.entry_count(self._number, stored.handle))

    @exclusive
    def set_count(self, key: tuple[Match, ...], count: Count, priority: int = 0) -> None:
        """Set the direct counter of an entry."""
        stored = self._counted(key, priority)
        self._native.set_entry_count(self._number, stored.handle, count.packets, count.bytes)

    # -- meters and idle times -----------------------------------------------------------------------

    @exclusive
    def set_meter(self, key: tuple[Match, ...], config: MeterConfig | None, priority: int = 0) -> None:
        """Configure the direct meter of an entry; None finds every packet green."""
        stored = self._metered(key, priority)
        meter_words(config, self._table.name)
        self._put_meter(stored.handle, config)
        stored.entry = replace(stored.entry, meter=config)

    @exclusive
    def marked(self, key: tuple[Match, ...], priority: int = 0) -> Marked:
        """Return what the direct meter of an entry has found green, yellow and red."""
        handle = self._metered(key, priority).handle
        return marked_of(self._native.entry_marked(self._number, handle))

    @exclusive
    def clear_marked(self, key: tuple[Match, ...], priority: int = 0) -> None:
        """Set these counters to zero."""
        handle = self._metered(key, priority).handle
        self._native.clear_entry_marked(self._number, handle)

    @exclusive
    def idle_time(self, key: tuple[Match, ...], priority: int = 0) -> int:
        """Return nanoseconds since an entry was hit, or made, as of the last `Switch.expired`."""
        if self._idle is None:
            raise ControlError(Code.FAILED_PRECONDITION, f"entries of {self._table.name} do not age")
        return self._idle.idle_time(self._find(key, priority).handle)

    @exclusive
    def expired(self, now: int) -> list[Entry]:
        """Return the entries that have timed out."""
        return [] if self._idle is None else [self._stored[each].entry for each in self._idle.expired(now)]

    # -- default action ----------------------------------------------------------------------------

    @exclusive
    def set_default(self, name: str, args: Sequence[int] = ()) -> None:
        """Set what the table does on a miss. PERMISSION_DENIED when the program fixed it."""
        action = self._action(name, tuple(args))
        if self._profile is not None:
            raise ControlError(
                Code.INVALID_ARGUMENT, f"{self._table.name} has an action profile: its default is fixed"
            )
        if self._table.default_const:
            raise ControlError(
                Code.PERMISSION_DENIED, f"the program fixes the default action of {self._table.name}"
            )
        self._default = ActionCall(action.id, tuple(args))
        self._install_default(self._default)

    @exclusive
    def reset_default(self) -> None:
        """Put the program's default action back."""
        self._default = self._table.default
        self._install_default(self._default)

    @exclusive
    def default(self) -> tuple[str, tuple[int, ...]] | None:
        """Return the default action and its arguments; None for a table that does nothing on a miss."""
        if self._default is None:
            return None
        return self._program.actions[self._default.action].name, self._default.args

    # -- helpers -----------------------------------------------------------------------------------

    def _install_default(self, call: ActionCall | None) -> None:
        if call is None:
            self._native.set_default(self._number, _NO_ACTION, [0] * self._words)
            return
        args = pack_args(self._program.actions[call.action], call.args, self._words)
        self._native.set_default(self._number, call.action, args)

    def _put(self, entry: Entry) -> None:
        packed = self._pack(entry.key, entry.priority)
        data = self._data(entry)
        with self._between_packets():
            handle = self._native.insert(
                self._number,
                packed.key,
                packed.check,
                packed.priority,
                data.action,
                data.args,
            )
            if handle >= 0 and entry.meter is not None:
                self._put_meter(handle, entry.meter)
        if handle < 0:
            self._release(data.reference)
            raise ControlError(Code.RESOURCE_EXHAUSTED, f"no memory for an entry of {self._table.name}")
        self._stored[entry.key, entry.priority] = _Stored(entry, handle, data.reference)
        if self._idle is not None:
            self._idle.begin(handle, (entry.key, entry.priority), entry.timeout_ns)

    def _between_packets(self) -> AbstractContextManager[None]:
        """Keep packets of a table with a meter from finding an entry with another one's."""
        return nullcontext() if self._table.meter is None else self._native.paused()

    def _put_meter(self, handle: int, config: MeterConfig | None) -> None:
        if self._table.meter is not None:
            words = meter_words(config, self._table.name)
            self._native.set_entry_meter(self._number, handle, words)

    def _data(self, entry: Entry) -> _Data:
        """Return what an entry, which was checked, makes the data plane do; counts its reference to a
        profile.
        """
        if entry.via is None or self._profile is None:
            action = self._actions[entry.action]
            return _Data(action.id, pack_args(action, entry.args, self._words))
        reference = self._profile.acquire(entry.via)
        return _Data(reference.action, [reference.handle] + [0] * (self._words - 1), reference)

    def _release(self, reference: Reference | None) -> None:
        if reference is not None and self._profile is not None:
            self._profile.release(reference)

    def _pack(self, key: tuple[Match, ...], priority: int) -> _Packed:
        if self._every_bit is not None:
            values = [match.value for match in key if isinstance(match, Exact)]
            return _Packed(self._layout.pack(values), self._every_bit, priority)
        values, checks = [], []
        for match, field in zip(key, self._table.keys, strict=True):
            full = (1 << field.bits) - 1
            match match:
                case Exact(value):
                    values.append(value)
                    checks.append(full)
                case Lpm(value, length):
                    values.append(value)
                    checks.append(full >> (field.bits - length) << (field.bits - length))
                    if self._table.kind is MatchKind.LPM:
                        priority = length
                case Ternary(value, mask):
                    values.append(value)
                    checks.append(mask)
                case Optional(value):
                    values.append(value or 0)
                    checks.append(0 if value is None else full)
                case Range(low, high):
                    values.append(low)
                    checks.append(high)
        return _Packed(self._layout.pack(values), self._layout.pack(checks), priority)

    def _find(self, key: tuple[Match, ...], priority: int) -> _Stored:
        try:
            return self._stored[self._checked_key(key), priority]
        except KeyError:
            raise ControlError(Code.NOT_FOUND, f"{self._table.name} has no entry {key}") from None

    def _counted(self, key: tuple[Match, ...], priority: int) -> _Stored:
        if not self._table.counted:
            raise ControlError(Code.FAILED_PRECONDITION, f"{self._table.name} has no direct counter")
        return self._find(key, priority)

    def _metered(self, key: tuple[Match, ...], priority: int) -> _Stored:
        if self._table.meter is None:
            raise ControlError(Code.FAILED_PRECONDITION, f"{self._table.name} has no direct meter")
        return self._find(key, priority)

    def _check_mutable(self) -> None:
        if self._table.immutable:
            raise ControlError(Code.PERMISSION_DENIED, f"the entries of {self._table.name} are the program's")
        if not self._table.keys:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no key, so no entries")

    def _action(self, name: str, args: tuple[int, ...]) -> Action:
        if name not in self._actions:
            names = ", ".join(self._actions)
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no action {name}, but {names}")
        check_args(self._actions[name], args)
        return self._actions[name]

    def _checked(self, entry: Entry) -> Entry:
        if entry.priority < 0 or entry.priority > _PIVOT:
            raise ControlError(Code.OUT_OF_RANGE, f"priority {entry.priority}")
        if entry.priority and not self._table.prioritised:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no priorities")
        if entry.timeout_ns and not self._table.ages:
            raise ControlError(Code.INVALID_ARGUMENT, f"entries of {self._table.name} do not age")
        if not 0 <= entry.timeout_ns < 1 << 63:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name}: timeout {entry.timeout_ns}")
        if entry.meter is not None and self._table.meter is None:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no direct meter")
        if entry.meter is not None:
            meter_words(entry.meter, self._table.name)
        if self._profile is None:
            if entry.via is not None:
                raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no action profile")
            self._action(entry.action, entry.args)
        elif entry.via is None or entry.action:
            raise ControlError(
                Code.INVALID_ARGUMENT, f"{self._table.name} has an action profile: its entries refer to that"
            )
        key, args = self._checked_key(entry.key), tuple(entry.args)
        return entry if (key, args) == (entry.key, entry.args) else replace(entry, key=key, args=args)

    def _checked_key(self, key: tuple[Match, ...]) -> tuple[Match, ...]:
        """Return the key in canonical form (bits outside masks and prefixes zero); refuses a wrong one."""
        if len(key) != len(self._table.keys):
            raise ControlError(
                Code.INVALID_ARGUMENT,
                f"{self._table.name} has {len(self._table.keys)} key fields, not {len(key)}",
            )
        fields = self._table.keys
        key = tuple(
            _canonical(match, field, self._table.name) for match, field in zip(key, fields, strict=True)
        )
        if not self._masks:
            return key
        return tuple(_masked(match, field) for match, field in zip(key, fields, strict=True))


def _constant_match(match: FieldMatch) -> Match:
    match match.kind:
        case MatchKind.EXACT:
            return Exact(match.value)
        case MatchKind.LPM:
            return Lpm(match.value, match.prefix_len)
        case MatchKind.TERNARY:
            return Ternary(match.value, match.mask)
        case MatchKind.RANGE:
            return Range(match.value, match.high)


def _masked(match: Match, field: TableKey) -> Match:
    """Return a match of a key field that is looked up under a mask (`hdr.x & 0xff00`): other bits do not
    count.
    """
    match match:
        case Exact(value) | Lpm(value) | Ternary(value) if field.mask is not None:
            return replace(match, value=value & field.mask)
    return match


def _canonical(match: Match, field: TableKey, table: str) -> Match:
    full = (1 << field.bits) - 1
    if field.kind is MatchKind.EXACT and isinstance(match, Exact) and 0 <= match.value <= full:
        return match  # most are
    where = f"{table}, key {field.name}"

    def fits(*values: int) -> None:
        for value in values:
            if not 0 <= value <= full:
                raise ControlError(Code.OUT_OF_RANGE, f"{where}: {value} does not fit {field.bits} bits")

    match match, field.kind:
        case Exact(value), MatchKind.EXACT:
            fits(value)
            return match
        case Lpm(value, length), MatchKind.LPM:
            fits(value)
            if not 0 <= length <= field.bits:
                raise ControlError(Code.OUT_OF_RANGE, f"{where}: prefix length {length} of {field.bits} bits")
            return Lpm(value & full >> (field.bits - length) << (field.bits - length), length)
        case Ternary(value, mask), MatchKind.TERNARY:
            fits(value, mask)
            return Ternary(value & mask, mask)
        case Optional(value), MatchKind.TERNARY:
            fits(value or 0)
            return match
        case Range(low, high), MatchKind.RANGE:
            fits(low, high)
            if low > high:
                raise ControlError(Code.INVALID_ARGUMENT, f"{where}: empty range {low}..{high}")
            return match
    raise ControlError(Code.INVALID_ARGUMENT, f"{where} is {field.kind.value}, not {type(match).__name__}")
