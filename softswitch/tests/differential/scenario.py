# SPDX-License-Identifier: Apache-2.0
"""A scenario: what the control plane has installed, and the frames that come in. Random ones from P4Info."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import text_format

from softp4.p4runtime.schema import p4info_pb2
from tests.differential.frames import FrameMaker
from tests.differential.rows import Default, Replicas, Row
from tests.differential.subjects import Subject
from tests.differential.vocabulary import FieldName, Vocabulary
from tests.harness.keys import Key, Lpm, Optional, Range, Ternary

PORTS: Final = (0, 1, 2, 3, 5, 8, 13, 255)
_GROUPS: Final = (1, 2, 3, 5, 9)
_INGRESS_PORT: Final = ("standard_metadata", "ingress_port")
_MOST_ENTRIES: Final = 12  # of one table


@dataclass(frozen=True)
class Scenario:
    """Entries, defaults, multicast groups and clone sessions by number, and frames as (port, bytes)."""

    rows: tuple[Row, ...]
    defaults: tuple[Default, ...]
    groups: tuple[tuple[int, Replicas], ...]
    sessions: tuple[tuple[int, Replicas], ...]
    frames: tuple[tuple[int, bytes], ...]


class ScenarioMaker:
    """Scenarios for one program. The same seed makes the same ones."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self._rng = random.Random(seed)
        self._subject = subject
        self._info = text_format.Parse(subject.p4info.read_text(), p4info_pb2.P4Info())
        # What P4Info has as wide as a controller's type is no wider in the program.
        types = {each["name"]: each["fields"] for each in subject.json["header_types"]}
        self._widths = {
            (header["name"], name): bits
            for header in subject.json["headers"]
            for name, bits, *_ in types.get(header["header_type"], ())
        }
        self._params = {
            action["name"]: [param["bitwidth"] for param in action["runtime_data"]]
            for action in subject.json["actions"]
        }
        self._actions = {action.preamble.id: action for action in self._info.actions}
        self._keys = {
            table["name"]: table["key"]
            for pipeline in subject.json["pipelines"]
            for table in pipeline["tables"]
        }

    def scenario(self, frames: int) -> Scenario:
        """Return a random one."""
        rng = self._rng
        vocabulary = Vocabulary(self._subject.json, rng)
        # A table that p4c optimises away is still in P4Info.
        tables = [
            table
            for table in self._info.tables
            if not table.implementation_id and table.preamble.name in self._keys
        ]
        groups = {group: self._replicas() for group in _GROUPS}
        rows: dict[tuple[str, tuple[Key, ...]], Row] = {}
        traffic = self._subject.traffic(rng) if self._subject.traffic else None
        if traffic:
            groups |= traffic.groups
            rows = {(row.table, row.key): row for row in traffic.rows}
        # BMv2 takes no entry beside those of the program, const or not.
        fixed = {
            table["name"]
            for pipeline in self._subject.json["pipelines"]
            for table in pipeline["tables"]
            if "entries" in table
        }
        for table in tables:
            if not table.is_const_table and table.preamble.name not in fixed:
                for row in self._rows(table, vocabulary):
                    rows.setdefault((row.table, row.key), row)
        defaults = [
            self._default(table, vocabulary)
            for table in tables
            if _takes_default(table) and rng.random() < 0.3
        ]
        sessions = [(session, self._replicas()) for session in _GROUPS]
        maker = FrameMaker(self._subject.json, vocabulary, rng)
        by_table: dict[str, list[Row]] = {}
        for row in rows.values():
            by_table.setdefault(row.table, []).append(row)
        return Scenario(
            tuple(rows.values()),
            tuple(defaults),
            tuple(groups.items()),
            tuple(sessions),
            tuple(
                self._spoilt(traffic.arrival())
                if traffic and rng.random() < 0.7
                else self._arrival(maker, vocabulary, list(by_table.values()))
                for _ in range(frames)
            ),
        )

    def _arrival(
        self, maker: FrameMaker, vocabulary: Vocabulary, tables: Sequence[Sequence[Row]]
    ) -> tuple[int, bytes]:
        """Return a frame that, with luck, hits one row of each table."""
        rng = self._rng
        theme: dict[FieldName, int] = {}
        for rows in rng.sample(tables, len(tables)):
            row = rng.choice(rows)
            for source, part in zip(self._keys[row.table], row.key, strict=True):
                theme[tuple(source["target"])] = self._hit(part)
        vocabulary.begin(theme)
        while True:
            port, frame = maker.arrival()
            if self._subject.allows(frame):
                break
        if port is None and rng.random() < 0.8:
            port = theme.get(_INGRESS_PORT)
        return rng.choice(PORTS) if port is None else port, frame

    def _spoilt(self, arrival: tuple[int, bytes]) -> tuple[int, bytes]:
        """Return the same, or with another byte, or from another port."""
        rng = self._rng
        port, frame = arrival
        chance = rng.random()
        if chance < 0.05:
            return rng.choice(PORTS), frame
        if chance < 0.15:
            at = rng.randrange(len(frame))
            return port, frame[:at] + rng.randbytes(1) + frame[at + 1 :]
        return port, frame

    def _hit(self, part: Key) -> int:
        """Return a value that a key field matches."""
        rng = self._rng
        match part:
            case Lpm(value, _) | Ternary(value, _):
                return value
            case Range(low, high):
                return rng.choice((low, high, rng.randint(low, high)))
            case Optional(value):
                return value or 0
        return part

    def _replicas(self) -> Replicas:
        """Choose at most three, each of a port of its own: BMv2 refuses the same one twice."""
        rng = self._rng
        ports = rng.sample(PORTS, rng.randrange(4))
        return tuple((port, rng.choice((0, 1, 2, 7, 13, 0xFFFF))) for port in ports)

    def _rows(self, table: Any, vocabulary: Vocabulary) -> list[Row]:
        rng = self._rng
        if not table.match_fields:
            return []
        if any(field.type_name.name and not field.bitwidth for field in table.match_fields):
            return []  # of types that only a controller knows
        actions = [ref.id for ref in table.action_refs if ref.scope != ref.DEFAULT_ONLY]
        made: dict[tuple[Key, ...], Row] = {}
        if not actions:
            return []
        sources = self._keys[table.preamble.name]
        prioritised = any(_kind(field) in ("TERNARY", "RANGE", "OPTIONAL") for field in table.match_fields)
        priorities = rng.sample(range(1, 1000), _MOST_ENTRIES)
        for priority in priorities[: rng.randrange(min(_MOST_ENTRIES, table.size) + 1)]:
            pairs = zip(table.match_fields, sources, strict=True)
            key = tuple(self._key(field, source, vocabulary) for field, source in pairs)
            action, args = self._call(rng.choice(actions), vocabulary)
            made.setdefault(key, Row(table.preamble.name, key, action, args, priority if prioritised else 0))
        return list(made.values())

    def _key(self, field: Any, source: Any, vocabulary: Vocabulary) -> Key:
        rng = self._rng
        bits = self._width(source["target"], field.bitwidth or 1)
        full = (1 << bits) - 1
        value = vocabulary.value(bits)
        if source.get("mask"):
            value &= int(source["mask"], 16)  # hdr.x & mask
        match _kind(field):
            case "LPM":
                length = rng.choice((0, 1, bits // 2, bits - 1, bits, bits, rng.randrange(bits + 1)))
                return Lpm(value & (full >> bits - length << bits - length), length)
            case "TERNARY":
                mask = rng.choice((0, full, full, full & ~1, 1 << bits - 1, rng.getrandbits(bits)))
                return Ternary(value & mask, mask)
            case "RANGE":
                low, high = sorted((value, vocabulary.value(bits)))
                return Range(max(low, 1), max(high, 1))  # BMv2 takes 0..255 of 16 bits for everything
            case "OPTIONAL":
                return Optional(rng.choice((None, value, value)))
        return value

    def _width(self, target: Any, bits: int) -> int:
        known: int = self._widths.get(tuple(target), bits)
        return min(bits, known)

    def _call(self, action: int, vocabulary: Vocabulary) -> tuple[str, tuple[int, ...]]:
        described = self._actions[action]
        args = []
        widths = self._params[described.preamble.name]
        for param, bits in zip(described.params, widths, strict=True):
            if bits == 9 and self._rng.random() < 0.8:
                args.append(self._rng.choice(PORTS))
            else:
                args.append(vocabulary.value(min(bits, param.bitwidth or bits)))
        return described.preamble.name, tuple(args)

    def _default(self, table: Any, vocabulary: Vocabulary) -> Default:
        actions = [ref.id for ref in table.action_refs if ref.scope != ref.TABLE_ONLY]
        return Default(table.preamble.name, *self._call(self._rng.choice(actions), vocabulary))


def _kind(field: Any) -> str:
    return str(p4info_pb2.MatchField.MatchType.Name(field.match_type))


def _takes_default(table: Any) -> bool:
    return not table.const_default_action_id and any(ref.scope != ref.TABLE_ONLY for ref in table.action_refs)


def batches(frames: Sequence[tuple[int, bytes]], size: int) -> list[Sequence[tuple[int, bytes]]]:
    """Return frames in groups of at most ``size``."""
    return [frames[start : start + size] for start in range(0, len(frames), size)]
