# SPDX-License-Identifier: Apache-2.0
"""Logical tables: a gateway, entries that match the packet's key, an action, and which table is next."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.harness.bfa.actions import Action, ActionReader, Bus, BusMap
from tests.harness.bfa.assembly import Section, Text, UnknownLineError, arguments, bounds
from tests.harness.bfa.containers import Names, Values
from tests.harness.bfa.crossbar import Crossbar, Group
from tests.harness.bfa.gateway import gateway
from tests.harness.bfa.key import Key
from tests.harness.bfa.stateful import Register

END: Final = "END"
_COUNTER_SHIFT: Final = 3  # of the address of a counter that has one entry in a memory's word
_CALLED: Final = re.compile(r"([^()]+)(?:\((.*)\))?")


@dataclass
class Entry:
    """What a table does with packets whose key has some bits. `rank` orders entries: the least wins."""

    value: int
    mask: int
    rank: int
    action: Action
    words: dict[str, int]
    packets: int = 0


@dataclass
class Context:
    """A packet in a stage: what the stage found, what it will leave, and its bus."""

    found: Values
    left: Values
    bus: Bus = field(default_factory=Bus)
    writers: dict[str, str] = field(default_factory=dict)


Layout = dict[str, tuple[int, int]]
"""The first and the last bit of each word of action data in memory; words may share what one of them uses."""


@dataclass
class Attached:
    """What a table may call on, by name."""

    registers: dict[str, Register]
    counters: dict[str, dict[int, int]]
    buses: dict[str, Section | None]  # of action data tables
    layouts: dict[str, dict[str, Layout]]  # of these, by action


class Table:
    """One logical table of a stage."""

    def __init__(
        self, kind: str, match: Section, result: Section, names: Names, stage: int, attached: Attached
    ) -> None:
        self.line = match.line
        described = match.section("p4")
        if described is None:
            raise UnknownLineError(f"line {match.line}: a table without a name")
        self.name = described.text("name").value
        described.not_modelled("hidden")  # p4c's own: it has no size, for nobody fills it
        self._capacity = int(described.text("size").value) if "size" in described else None
        described.done()
        self._always = kind == "hash_action"
        self._attached = attached
        self._key = Key(match.section("p4_param_order"), names, stage)
        self.entries: list[Entry] = []
        self.static = False
        crossbar = Crossbar(match.section("input_xbar"), names, stage)
        self._check_crossbar(kind, match, crossbar)
        before = match.section("gateway")
        self._gateway = gateway(before, names, stage) if before is not None else None
        self._hit = [text.value for text in match.items("hit").texts()]
        self._miss = match.text("miss").value if "miss" in match else END
        following = match.get("next")
        self._next = following.value if isinstance(following, Text) else None
        self._address: Callable[[Values], int] | None = None
        self._units: dict[str, Callable[[Values], int]] = {}
        self._result(result, result is match, crossbar, names, stage)
        context = match.section("context_json")
        if context is not None:
            self._static(context)
        match.not_modelled("row", "bus", "column", "stash", "ways", "result_bus", "indirect_bus")
        match.done()

    def _check_crossbar(self, kind: str, match: Section, crossbar: Crossbar) -> None:
        """Refuse a table that cannot see its key."""
        groups: list[Group] | None = None
        if kind == "ternary_match":
            groups = []
            for item in match.items("match").values:
                if not isinstance(item, Section):
                    raise UnknownLineError(f"line {item.line}: a TCAM's groups were expected")
                for which, name in (("group", "ternary"), ("byte_group", "byte")):
                    if which in item:
                        groups.append((name, int(item.text(which).value)))
                item.not_modelled("byte_config", "dirtcam")  # nibbles or bytes: a matter of encoding
                item.done()
        else:
            match.not_modelled("match", "match_group_map")  # what of the key the memory holds, not the hash
            groups = [group for group in crossbar.groups if group[0] == "exact"]
        if not self._key.bits() <= crossbar.bits(groups):
            raise UnknownLineError(f"line {match.line}: {self.name} compares what is not on its crossbar")

    def _result(self, section: Section, same: bool, crossbar: Crossbar, names: Names, stage: int) -> None:
        """Read what is done: of the table itself, or of its indirect table."""
        if not same:
            section.not_modelled("row", "bus", "column")
        layout, units = section.section("format"), section.section("hash_dist")
        payload = self._gateway.payload if self._gateway is not None else {}
        widths = _format(layout) | {name: bits for name, (_, bits) in payload.items()}
        if units is not None:
            for match, _, node in units.each(Section, "a hash unit was expected", r"(\d+)"):
                self._units[match[1]] = crossbar.unit(int(match[1]), node)
            units.done()
        data = self._calls(section.get("action"), "action")
        self._register = self._calls(section.get("stateful"), "stateful")
        self._counter = self._calls(section.get("stats"), "stats")
        data_bus = self._attached.buses[data[0]] if data else None
        self._bus = BusMap(section.section("action_bus"), data_bus)
        # An entry names its action by a number, if there are several.
        chosen = "action" in arguments(section.text("instruction").value.partition("(")[2])
        codes = 1 << widths["action"] if chosen else 1
        self._immediate = 0, widths.get("immediate", 0) - 1
        self._layouts = self._attached.layouts[data[0]] if data else {}
        reader = ActionReader(names, stage, self._bus)
        self.actions: dict[str, Action] = {}
        listed = section.section("actions")
        if listed is None:
            raise UnknownLineError(f"line {section.line}: a table without actions")
        for _, key, node in listed.take():
            action = reader.read(key, node, self._hit)
            if action.name in self.actions or action.code >= codes:
                key.refuse("an action twice, or with a number that the entry has no bits for")
            self._check_calls(key, action)
            self.actions[action.name] = action
        self._default(section)
        if not same:
            section.done()

    def _calls(self, node: object, kind: str) -> tuple[str, list[str]] | None:
        """Read a call like ``name(hash_dist 0, meter_pfe, meter_type)``; there may be none."""
        if node is None:
            return None
        match = _CALLED.fullmatch(node.value) if isinstance(node, Text) else None
        known = {
            "action": self._attached.buses.keys(),
            "stateful": self._attached.registers.keys(),
            "stats": self._attached.counters.keys(),
        }[kind]
        if match is None or not isinstance(node, Text) or match[1] not in known:
            raise UnknownLineError(f"line {getattr(node, 'line', 0)}: calls what is not there")
        called = arguments(match[2])
        if called[0] == "$DIRECT" and kind != "stateful":
            return match[1], called
        unit = re.fullmatch(r"hash_dist (\d+)", called[0])
        if unit is None or unit[1] not in self._units or kind == "action":
            node.refuse("unknown address")
        self._address = self._units[unit[1]]
        return match[1], called

    def _check_calls(self, key: Text, action: Action) -> None:
        if action.program is not None:
            name, program = action.program
            if self._register is None or name != self._register[0]:
                key.refuse("runs the ALU of another table")
            if program not in self._attached.registers[name]:
                key.refuse(f"there is no program {program}")
        elif self._register is not None and self._register[1][1] == "$DEFAULT" and action.hit_allowed:
            key.refuse("the ALU runs with every entry, but this action has no program for it")
        if action.counter is not None and (self._counter is None or action.counter != self._counter[0]):
            key.refuse("counts in another table's counter")

    def _default(self, section: Section) -> None:
        name = section.get("default_action") or section.get("default_only_action")
        if not isinstance(name, Text) or name.value not in self.actions:
            raise UnknownLineError(f"line {section.line}: {self.name} has no default action")
        params = {}
        given = section.section("default_action_parameters")
        if given is not None:
            said = given.each(Text, "a parameter's value was expected")
            params = {key.value: int(value.value, 16) for _, key, value in said}
        action = self.actions[name.value]
        self._otherwise = Entry(0, 0, 0, action, self._words(action, params))
        miss = action.next_miss or action.next
        # What is next after a miss is said twice, by the table and by its default action.
        if not self._always and miss is not None and miss != self._miss and action.next_miss is None:
            raise UnknownLineError(f"line {section.line}: {self.name}: next is {miss} or {self._miss}")
        self._after_miss = action.next_miss or self._miss
        self._check_payload(section)

    def _words(self, action: Action, values: Mapping[str, int]) -> dict[str, int]:
        """Return an entry's words; what its memories have no bits for is refused."""
        layout = self._layouts.get(action.name, {})
        memory = used = 0
        words = action.data.words(values)
        for name, mask in action.data.used.items():
            low, high = self._immediate if name == "immediate" else layout.get(name, (0, -1))
            if mask >> high - low + 1 or (name != "immediate" and used & mask << low):
                raise UnknownLineError(f"{self.name}, {action.name}: {name} has no bits of its own for all")
            if name != "immediate":
                memory, used = memory | words[name] << low, used | mask << low
        stored = {name: memory >> low & (1 << high - low + 1) - 1 for name, (low, high) in layout.items()}
        return words | stored

    def _static(self, context: Section) -> None:
        self.static = True
        handles = {action.handle: action for action in self.actions.values()}
        for node in context.items("static_entries").values:
            if not isinstance(node, Section):
                raise UnknownLineError(f"line {node.line}: an entry was expected")
            rank = int(node.text("priority").value)
            parts: list[tuple[int, int | None]] = []
            fields = node.items("match_key_fields_values").values
            for one, part in zip(self._key.fields, fields, strict=True):
                if not isinstance(part, Section):
                    raise UnknownLineError(f"line {part.line}: a field was expected")
                if (name := part.text("field_name")).value not in (one.name, one.field):
                    name.refuse("not in the key's order")
                mask = int(part.text("mask").value, 16) if "mask" in part else None
                parts.append((int(part.text("value").value, 16), mask))
                part.done()
            handle = int(node.text("action_handle").value, 16)
            if node.text("is_default_entry").value != "false":
                raise UnknownLineError(f"line {node.line}: a default among the entries")
            values = {
                value.text("parameter_name").value: int(value.text("value").value, 16)
                for value in node.items("action_parameters_values").values
                if isinstance(value, Section)
            }
            node.done()
            self._add(parts, handles[handle], values, rank)
        context.done()

    def _add(
        self,
        parts: list[tuple[int, int | None]],
        action: Action,
        values: Mapping[str, int],
        rank: int,
    ) -> None:
        if not action.hit_allowed:
            raise UnknownLineError(f"{self.name}: {action.name} is for the default only")
        value, mask = self._key.join(parts)
        if self._capacity is not None and len(self.entries) >= self._capacity:
            raise UnknownLineError(f"{self.name} holds {self._capacity} entries")
        if any((one.value, one.mask, one.rank) == (value, mask, rank) for one in self.entries):
            raise UnknownLineError(f"{self.name} has that entry already")
        self.entries.append(Entry(value, mask, rank, action, self._words(action, values)))
        self.entries.sort(key=lambda one: one.rank)

    def insert(
        self, match: Mapping[str, tuple[int, int | None]], action: str, params: Mapping[str, int], rank: int
    ) -> None:
        """Add an entry of the controller's: fields by their names, the least rank wins."""
        if self.static or set(match) != {one.name for one in self._key.fields}:
            raise UnknownLineError(f"{self.name} takes no entry with the key {sorted(match)}")
        self._add([match[one.name] for one in self._key.fields], self.actions[action], params, rank)

    def find(self, match: Mapping[str, tuple[int, int | None]], rank: int) -> Entry | None:
        """Return the entry with this key, or None."""
        value, mask = self._key.join([match[one.name] for one in self._key.fields])
        same = (one for one in self.entries if (one.value, one.mask, one.rank) == (value, mask, rank))
        return next(same, None)

    def run(self, context: Context) -> str:
        """Let a packet through; return the table that is next."""
        if self._gateway is not None:
            following = self._gateway.next(context.found)
            if self._always:
                return self._by_gateway(context, following)
            if following is not None:
                return following
        entry = self._lookup(context.found)
        if entry is None:
            self._act(context, self._otherwise)
            return self._after_miss
        entry.packets += 1
        self._act(context, entry)
        return entry.action.next or self._hit[0]

    def _by_gateway(self, context: Context, following: str | None) -> str:
        """Run a table without entries: where the gateway names a table, its payload is the entry; where the
        table itself is to run, there is none.
        """
        if following is not None:
            self._act(context, self._otherwise)
            return following
        if self._next is None:
            raise UnknownLineError(f"line {self.line}: {self.name} does not say which table is next")
        return self._next

    def _check_payload(self, section: Section) -> None:
        """Refuse a payload that is not the entry of the default action."""
        payload = {}
        if self._gateway is not None:
            payload = {name: value for name, (value, _) in self._gateway.payload.items()}
        if payload and not self._always:
            raise UnknownLineError(f"line {section.line}: a payload of a table with entries")
        action = self._otherwise.action
        switched = "counter_pfe" if self._counter is not None and self._counter[1][1] != "$DEFAULT" else None
        if payload.get("action", action.code) != action.code or (
            switched is not None and self._always and payload.get(switched) != int(action.counter is not None)
        ):
            raise UnknownLineError(f"line {section.line}: the payload is not of {action.name}")

    def _lookup(self, values: Values) -> Entry | None:
        if not self.entries:
            return None
        key = self._key.value(values)
        for entry in self.entries:
            if key & entry.mask == entry.value:
                return entry
        return None

    def _act(self, context: Context, entry: Entry) -> None:
        action, words = entry.action, dict(entry.words)
        for number, unit in self._units.items():
            words[f"hash_dist {number}"] = unit(context.found)
        if action.program is not None:
            assert self._address is not None
            name, program = action.program
            address = self._address(context.found)
            words[name] = self._attached.registers[name].run(program, address, context.found)
        self._bus.fill(context.bus, self.name, words)
        for container, operate in action.operations.items():
            if context.writers.setdefault(container, self.name) != self.name:
                other = context.writers[container]
                raise UnknownLineError(f"{self.name} and {other} write {container} in one stage")
            context.left[container] = operate(context.found, context.bus.bytes)
        if action.counter is not None and self._counter is not None and self._address is not None:
            counts = self._attached.counters[action.counter]
            index = self._address(context.found) >> _COUNTER_SHIFT
            counts[index] = counts.get(index, 0) + 1


def _format(section: Section | None) -> dict[str, int]:
    """Return how many bits each part of an entry has, those of its first group."""
    widths: dict[str, int] = {}
    if section is not None:
        for match, key, node in section.take(r"(\w+)(?:\((\d+)\))?"):
            if match[1] == "match" or match[2] not in (None, "0"):
                continue  # what of the key a memory's word holds, and its further entries
            if not isinstance(node, Text):
                key.refuse("bits were expected")
            low, high = bounds(node.value)
            widths[match[1]] = high - low + 1
        section.done()
    return widths
