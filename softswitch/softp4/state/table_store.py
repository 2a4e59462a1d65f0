# SPDX-License-Identifier: Apache-2.0
"""One table as the control plane sees it: entries checked, remembered, and put into the native table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from softp4.codegen.keys import Piece, arg_pieces, entry_words, pack_args, unpack_args
from softp4.errors import Code, ControlError
from softp4.program.types import Action, ActionCall, FieldMatch, MatchKind, Program, Table
from softp4.runtime.bindings import NativeSwitch, exclusive, words
from softp4.state.action_checks import check_args
from softp4.state.action_profiles import ProfileStore, Reference
from softp4.state.entry import (
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
    Via,
)
from softp4.state.idle import IdleTimes
from softp4.state.meters import marked_of, meter_words
from softp4.state.packed_keys import PackedKeys

# BMv2's own priorities are better when smaller. P4Runtime's pivot (in PI) is the greatest int32.
_PIVOT = (1 << 31) - 1
_NO_ACTION = (1 << 32) - 1


@dataclass(slots=True)
class PackedEntry:
    """An entry as the native table has it, with what that does not know.

    Attributes:
        key: see `PackedKeys`.
        action: the program's number of the action; 0 with `via`.
        args: the argument words; empty with `via`.
        wire: the entry as a control protocol sends it, if that keeps it here.
        handle: the native table's.
        timeout_ns, meter, via: as in `Entry`.
        entry: the entry that this was made from, if it was.
        reference: to the members of an action profile.
    """

    key: bytes
    action: int
    args: bytes
    wire: bytes | None = None
    handle: int = -1
    timeout_ns: int = 0
    meter: MeterConfig | None = None
    via: Via | None = None
    entry: Entry | None = None
    reference: Reference | None = None


class TableStore:
    """A table: its entries with their counters, meters and idle times, and its default action.

    Thread-safe. A call that cannot be done raises ControlError and changes nothing.

    Attributes:
        keys: how its keys are packed.
        words: argument words of an entry.
        watch: is told of every call that an entry or the default action is about to make: the table, the
            action, and its argument words.
        plain: whether its entries can change, and are no more than a key and an action: they have no direct
            meter, do not age, and refer to no action profile.
    """

    def __init__(
        self,
        native: NativeSwitch,
        number: int,
        program: Program,
        table: Table,
        profile: ProfileStore | None,
    ) -> None:
        self.watch: Callable[[Table, int, bytes], None] | None = None
        self._native = native
        self._number = number
        self._program = program
        self._table = table
        self._profile = profile
        self.keys = PackedKeys(table)
        self._actions = {each.name: each for each in reversed(program.table_actions(table))}
        self.words = entry_words(program, table)
        self._fixed = _obstacle(table)
        self.plain = not (self._fixed or table.meter or table.ages or table.profile)
        self._stored: dict[bytes, PackedEntry] = {}
        self._idle = IdleTimes(native, number) if table.ages else None
        self._default = table.default
        self._install_default(table.default)
        for each in table.entries:
            call = each.call
            key = tuple(_constant_match(match) for match in each.key)
            priority = _PIVOT - each.priority if table.prioritised else 0
            entry = Entry(key, program.actions[call.action].name, call.args, priority)
            self._put(self._packed(entry))

    # -- entries -----------------------------------------------------------------------------------

    def insert(self, entry: Entry) -> None:
        """Add an entry. ALREADY_EXISTS for the same key (and priority), RESOURCE_EXHAUSTED when full."""
        self._check_mutable()
        self.insert_packed(self._packed(entry))

    def modify(self, entry: Entry) -> None:
        """Replace action and arguments of the entry with this key (and priority); counters go on."""
        self._check_mutable()
        self.modify_packed(self._packed(entry))

    def delete(self, key: tuple[Match, ...], priority: int = 0) -> None:
        """Remove the entry with this key (and priority)."""
        self._check_mutable()
        self.delete_packed(self.keys.pack(key, priority))

    def insert_packed(self, made: PackedEntry) -> None:
        """Add an entry that is packed already, and whose fields have been checked, as `insert` does."""
        with self._native.control:
            self._check_mutable()
            if made.meter is not None:
                self._check_meter(made.meter)
            if made.key in self._stored:
                key, _ = self.keys.unpack(made.key)
                raise ControlError(Code.ALREADY_EXISTS, f"{self._table.name} already has an entry {key}")
            if len(self._stored) >= self._table.size:
                raise ControlError(
                    Code.RESOURCE_EXHAUSTED, f"{self._table.name} is full ({self._table.size} entries)"
                )
            self._put(made)

    def modify_packed(self, made: PackedEntry) -> None:
        """Put a packed entry, whose fields have been checked, in place of another, as `modify` does."""
        with self._native.control:
            self._check_mutable()
            if made.meter is not None:
                self._check_meter(made.meter)
            before = self.packed_entry(made.key)
            action, args = self._acquire(made)
            made.handle = before.handle
            self._announce((made.action,), (made.args,))
            if self._table.meter is None:
                self._native.modify(self._number, made.handle, action, args)
            else:
                with self._native.paused():  # no packet finds an entry with another one's meter
                    self._native.modify(self._number, made.handle, action, args)
                    self._put_meter(made.handle, made.meter)
            if self._idle is not None:
                self._idle.set_timeout(made.handle, made.timeout_ns)
            self._stored[made.key] = made
            self._release(before.reference)

    def delete_packed(self, key: bytes) -> None:
        """Remove the entry with this packed key."""
        with self._native.control:
            self._check_mutable()
            stored = self.packed_entry(key)
            self._native.remove(self._number, stored.handle)
            if self._idle is not None:
                self._idle.end(stored.handle)
            del self._stored[key]
            self._release(stored.reference)

    # Many at once, in a plain table: all of them, or none, which is for the caller to do one by one.

    def insert_all(
        self,
        keys: Sequence[bytes],
        actions: Sequence[int],
        args: Sequence[bytes],
        wires: Sequence[bytes | None],
    ) -> bool:
        """Add entries as `insert_packed` does; do nothing, and return False, if one cannot be added."""
        with self._native.control:
            stored = self._stored
            if len(stored) + len(keys) > self._table.size:
                return False
            if len(set(keys)) < len(keys) or not stored.keys().isdisjoint(keys):
                return False
            self._announce(actions, args)
            handles = self._native.insert_all(self._number, keys, actions, b"".join(args))
            if len(handles) < len(keys):  # no memory
                self._native.remove_all(self._number, handles)
                return False
            stored.update(zip(keys, map(PackedEntry, keys, actions, args, wires, handles), strict=True))
        return True

    def modify_all(
        self,
        keys: Sequence[bytes],
        actions: Sequence[int],
        args: Sequence[bytes],
        wires: Sequence[bytes | None],
    ) -> bool:
        """Replace entries as `modify_packed` does; do nothing, and return False, if one is not there."""
        with self._native.control:
            if (handles := self._handles(keys)) is None:
                return False
            self._announce(actions, args)
            self._native.modify_all(self._number, handles, actions, b"".join(args))
            self._stored.update(zip(keys, map(PackedEntry, keys, actions, args, wires, handles), strict=True))
        return True

    def delete_all(self, keys: Sequence[bytes]) -> bool:
        """Remove entries as `delete_packed` does; do nothing, and return False, if one is not there."""
        with self._native.control:
            if len(set(keys)) < len(keys) or (handles := self._handles(keys)) is None:
                return False
            self._native.remove_all(self._number, handles)
            for key in keys:
                del self._stored[key]
        return True

    def _handles(self, keys: Sequence[bytes]) -> list[int] | None:
        """Return the handles of the entries with these packed keys; None if one is not there."""
        try:
            return [self._stored[key].handle for key in keys]
        except KeyError:
            return None

    def packed_entry(self, key: bytes) -> PackedEntry:
        """Return the entry with this packed key; NOT_FOUND without one."""
        try:
            return self._stored[key]
        except KeyError:
            matches, _ = self.keys.unpack(key)
            raise ControlError(Code.NOT_FOUND, f"{self._table.name} has no entry {matches}") from None

    @exclusive
    def packed_entries(self) -> list[PackedEntry]:
        """Return all entries, constant ones included, in order of insertion."""
        return list(self._stored.values())

    def unpacked(self, stored: PackedEntry) -> Entry:
        """Return an entry of this table as an `Entry`."""
        if stored.entry is None:
            key, priority = self.keys.unpack(stored.key)
            name, args = "", tuple[int, ...]()
            if stored.via is None:
                action = self._program.actions[stored.action]
                name, args = action.name, unpack_args(action, stored.args)
            stored.entry = Entry(key, name, args, priority, stored.timeout_ns, stored.meter, stored.via)
        return stored.entry

    def pack_action(self, name: str, args: tuple[int, ...]) -> tuple[int, bytes]:
        """Return an action's number and its argument words. Raises ControlError for one that is none here."""
        action = self._action(name, args)
        return action.id, pack_args(action, args, self.words)

    def layout(self, name: str) -> tuple[int, tuple[tuple[Piece, ...], ...]]:
        """Return an action's number and where the value of each parameter lies in the argument words."""
        action = self._actions[name]
        return action.id, arg_pieces(action)

    @exclusive
    def calls(self) -> list[tuple[int, tuple[int, ...] | None]]:
        """Return the different calls of entries and default action, as the action's number and its arguments.

        With an action profile, the actions that members can have, without arguments.
        """
        found = {(stored.action, stored.args) for stored in self._stored.values() if stored.via is None}
        calls: list[tuple[int, tuple[int, ...] | None]] = [
            (action, unpack_args(self._program.actions[action], args)) for action, args in found
        ]
        if self._default is not None:
            calls.append((self._default.action, self._default.args))
        if self._profile is not None:
            calls += [(action, None) for action in self._table.actions]
        return calls

    @exclusive
    def entries(self) -> list[Entry]:
        """Return all entries, constant ones included, in order of insertion."""
        return [self.unpacked(stored) for stored in self._stored.values()]

    @exclusive
    def entry(self, key: tuple[Match, ...], priority: int = 0) -> Entry:
        """Return the entry with this key (and priority); NOT_FOUND without one."""
        return self.unpacked(self._find(key, priority))

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
        stored.meter = config
        if stored.entry is not None:
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
        expired = [] if self._idle is None else self._idle.expired(now)
        return [self.unpacked(self._stored[each]) for each in expired]

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
            self._native.set_default(self._number, _NO_ACTION, words([0] * self.words))
            return
        args = pack_args(self._program.actions[call.action], call.args, self.words)
        self._announce((call.action,), (args,))
        self._native.set_default(self._number, call.action, args)

    def _announce(self, actions: Iterable[int], args: Iterable[bytes]) -> None:
        if self.watch is not None:
            for action, words_of in set(zip(actions, args, strict=True)):
                self.watch(self._table, action, words_of)

    def _packed(self, entry: Entry) -> PackedEntry:
        """Return an entry packed. Raises ControlError for one that the table cannot have."""
        self._check(entry)
        action, args = self.pack_action(entry.action, tuple(entry.args)) if entry.via is None else (0, b"")
        key = self.keys.pack(entry.key, entry.priority)
        made = PackedEntry(key, action, args, timeout_ns=entry.timeout_ns, meter=entry.meter, via=entry.via)
        if any(isinstance(match, Optional) for match in entry.key):  # packed, it is a ternary match
            canonical = zip(entry.key, self.keys.unpack(key)[0], strict=True)
            matches = tuple(given if isinstance(given, Optional) else match for given, match in canonical)
            made.entry = replace(self.unpacked(made), key=matches)
        return made

    def _put(self, made: PackedEntry) -> None:
        action, args = self._acquire(made)
        self._announce((made.action,), (made.args,))
        if made.meter is None:
            handle = self._native.insert(self._number, made.key, action, args)
        else:
            with self._native.paused():  # no packet finds an entry without its meter
                handle = self._native.insert(self._number, made.key, action, args)
                if handle >= 0:
                    self._put_meter(handle, made.meter)
        if handle < 0:
            self._release(made.reference)
            raise ControlError(Code.RESOURCE_EXHAUSTED, f"no memory for an entry of {self._table.name}")
        made.handle = handle
        self._stored[made.key] = made
        if self._idle is not None:
            self._idle.begin(handle, made.key, made.timeout_ns)

    def _check_meter(self, config: MeterConfig) -> None:
        if self._table.meter is None:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no direct meter")
        meter_words(config, self._table.name)

    def _put_meter(self, handle: int, config: MeterConfig | None) -> None:
        if self._table.meter is not None:
            words = meter_words(config, self._table.name)
            self._native.set_entry_meter(self._number, handle, words)

    def _acquire(self, made: PackedEntry) -> tuple[int, bytes]:
        """Return what an entry makes the data plane do; counts its reference to a profile."""
        if made.via is None or self._profile is None:
            return made.action, made.args
        made.reference = self._profile.acquire(made.via)
        return made.reference.action, words([made.reference.handle] + [0] * (self.words - 1))

    def _release(self, reference: Reference | None) -> None:
        if reference is not None and self._profile is not None:
            self._profile.release(reference)

    def _find(self, key: tuple[Match, ...], priority: int) -> PackedEntry:
        return self.packed_entry(self.keys.pack(key, priority))

    def _counted(self, key: tuple[Match, ...], priority: int) -> PackedEntry:
        if not self._table.counted:
            raise ControlError(Code.FAILED_PRECONDITION, f"{self._table.name} has no direct counter")
        return self._find(key, priority)

    def _metered(self, key: tuple[Match, ...], priority: int) -> PackedEntry:
        if self._table.meter is None:
            raise ControlError(Code.FAILED_PRECONDITION, f"{self._table.name} has no direct meter")
        return self._find(key, priority)

    def _check_mutable(self) -> None:
        _ = self._native.handle
        if self._fixed is not None:
            raise ControlError(*self._fixed)

    def _action(self, name: str, args: tuple[int, ...]) -> Action:
        if name not in self._actions:
            names = ", ".join(self._actions)
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no action {name}, but {names}")
        check_args(self._actions[name], args)
        return self._actions[name]

    def _check(self, entry: Entry) -> None:
        """Raise ControlError unless the table can have an entry, by all but its key and its action."""
        if entry.priority < 0 or entry.priority > _PIVOT:
            raise ControlError(Code.OUT_OF_RANGE, f"priority {entry.priority}")
        if entry.priority and not self._table.prioritised:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no priorities")
        if entry.timeout_ns and not self._table.ages:
            raise ControlError(Code.INVALID_ARGUMENT, f"entries of {self._table.name} do not age")
        if not 0 <= entry.timeout_ns < 1 << 63:
            raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name}: timeout {entry.timeout_ns}")
        if entry.meter is not None:
            self._check_meter(entry.meter)
        if self._profile is None:
            if entry.via is not None:
                raise ControlError(Code.INVALID_ARGUMENT, f"{self._table.name} has no action profile")
        elif entry.via is None or entry.action:
            raise ControlError(
                Code.INVALID_ARGUMENT, f"{self._table.name} has an action profile: its entries refer to that"
            )


def _obstacle(table: Table) -> tuple[Code, str] | None:
    """Return why entries of a table cannot change, if they cannot."""
    if table.immutable:
        return Code.PERMISSION_DENIED, f"the entries of {table.name} are the program's"
    if not table.keys:
        return Code.INVALID_ARGUMENT, f"{table.name} has no key, so no entries"
    return None


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
