# SPDX-License-Identifier: Apache-2.0
"""Load p4c-bm2-ss's BMv2 JSON into a `Program`.

The format is behavioral-model's docs/JSON_format.md, version 2.x. What the switch cannot run is
refused here, by name, never ignored.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from softp4.program.calculations import (
    Algorithm,
    Calculation,
    CalculationInput,
    CrcParameters,
    InputConst,
    InputField,
    InputHeader,
)
from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.expressions import ExpressionReader
from softp4.program.headers import read_headers
from softp4.program.ir import FieldRef, Statement
from softp4.program.json import Json, checked, hexstr, member, number, objects, text
from softp4.program.limits import check_limits
from softp4.program.notify import read_digest, read_meter
from softp4.program.older import rewritten
from softp4.program.parser import ParserReader
from softp4.program.primitives import PrimitiveReader
from softp4.program.tables import PipelineReader, action_profile
from softp4.program.types import (
    MAX_WIDTH,
    Action,
    ActionProfile,
    Checksum,
    Counter,
    Param,
    Parser,
    Program,
    Register,
    ValueSet,
)

__all__ = ["Program", "load_program"]

_MAJOR: Final = 2
_MAX_CELLS: Final = 1 << 28
_REFUSED: Final = {
    "extern_instances": "extern instances",
}
_OF_TARGET: Final = ("parsers", "deparsers", "pipelines")
_IN_DEPARSER: Final = frozenset(
    ("log_msg", "assert", "assume", "truncate", "count", "register_write", "no_op")
)
_ALGORITHMS: Final = {
    "crc16": Algorithm.CRC16,
    "crc32": Algorithm.CRC32,
    "crcCCITT": Algorithm.CRC_CCITT,
    "csum16": Algorithm.CSUM16,
    "cksum16": Algorithm.CSUM16,
    "xor16": Algorithm.XOR16,
    "xor32": Algorithm.XOR32,
    "identity": Algorithm.IDENTITY,
    "round_robin": Algorithm.ROUND_ROBIN,
}
# Custom CRCs: bits, and what they are until the control plane says otherwise (as in BMv2).
_CUSTOM_CRCS: Final = {
    "crc8_custom": (8, CrcParameters(0x07)),
    "crc16_custom": (16, CrcParameters(0x8005, 0, 0, True, True)),
    "crc32_custom": (32, CrcParameters(0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True, True)),
    "crc64_custom": (64, CrcParameters(0x1B, 0, 0, True, True)),
}


def load_program(source: Path | bytes) -> Program:
    """Read a program from a file, or from the JSON text itself.

    Raises:
        ProgramError: it is not BMv2 JSON of major version 2, or contradicts itself; the message says where.
        UnsupportedConstruct: it uses something this switch does not run; the message names it.
        OSError: the file cannot be read.
    """
    return parsed(*text_of(source))


def text_of(source: Path | bytes) -> tuple[bytes, str]:
    """Return the JSON text of a program, and what errors call it. Raises OSError: it cannot be read."""
    return (source, "the program") if isinstance(source, bytes) else (source.read_bytes(), str(source))


def parsed(data: bytes, name: str) -> Program:
    """Return the program of a JSON text, which errors call ``name``. Raises as ``load_program`` does."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{name} is not JSON: {error}") from error
    _check_format(root, name)
    _check_target(root)
    for key, construct in _REFUSED.items():
        for each in objects(root, key, "program"):
            raise UnsupportedConstruct(construct, f"{key}, {_name_of(each)}")
    try:
        program = _Loader(rewritten(root)).program(hashlib.sha256(data).hexdigest())
    except RecursionError:
        raise UnsupportedConstruct("expressions nested too deep", "program") from None
    check_limits(program)
    return program


def _check_format(root: Json, name: str) -> None:
    if not isinstance(root, dict) or not {"header_types", "parsers", "pipelines", "actions"} <= set(root):
        raise ProgramError(
            f"{name} is JSON but no BMv2 program: compile it with p4c-bm2-ss (and pass the .json, "
            "not the P4Info)"
        )
    version = root.get("__meta__", {}).get("version") if isinstance(root.get("__meta__"), dict) else None
    if isinstance(version, list) and version[:1] != [_MAJOR]:
        raise ProgramError(f"{name} is BMv2 JSON version {version}; this switch reads version {_MAJOR}.x")


def _check_target(root: Json) -> None:
    """Refuse what p4c makes for BMv2's other targets."""
    found = {key: [_name_of(each) for each in objects(root, key, "program")] for key in _OF_TARGET}
    named = {*found["pipelines"]}
    if len(found["parsers"]) != 1 or len(found["deparsers"]) != 1 or not {"ingress", "egress"} <= named:
        parts = "; ".join(f"{key}: {', '.join(names) or 'none'}" for key, names in found.items())
        raise ProgramError(
            f"program: not for v1model, which has one parser, one deparser, and the pipelines ingress "
            f"and egress ({parts}); like simple_switch, this switch runs none for psa_switch or pna_nic"
        )


def _name_of(node: Json) -> str:
    return str(node.get("name", "?")) if isinstance(node, dict) else "?"


class _Loader:
    """The parts of one program, in the order in which they need each other."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._declared = read_headers(root)
        self._headers, self._stacks = self._declared.headers, self._declared.stacks
        self._value_sets = {each.name: each for each in map(_value_set, self._list("parse_vsets"))}
        self._registers = {each.name: each for each in map(_register, self._list("register_arrays"))}
        self._counters = {each.name: each for each in map(_counter, self._list("counter_arrays"))}
        header_types = {name: header.type for name, header in self._headers.items()}
        self._expressions = ExpressionReader(
            self._declared, {name: each.bits for name, each in self._registers.items()}
        )
        self._calculations = {each.name: each for each in map(self._calculation, self._list("calculations"))}
        meters = (read_meter(each, self._field) for each in self._list("meter_arrays"))
        self._meters = {each.name: each for each in meters}
        digests = (read_digest(each, self._field) for each in self._list("learn_lists"))
        self._digests = {each.id: each for each in digests}
        self._profiles = self._action_profiles()
        self._field_lists = dict(map(self._field_list, self._list("field_lists")))
        self._primitives = PrimitiveReader(
            self._expressions,
            [name for name, counter in self._counters.items() if counter.table is None],
            self._registers,
            self._calculations,
            self._field_lists,
            [name for name, meter in self._meters.items() if meter.table is None],
            self._digests,
        )
        self._actions = {each.id: each for each in map(self._action, self._list("actions"))}
        self._parsers = ParserReader(self._expressions, self._primitives, self._declared, self._value_sets)
        self._pipelines = PipelineReader(
            self._expressions, self._actions, header_types, self._meters, self._profiles
        )

    def _list(self, key: str) -> list[Json]:
        return objects(self._root, key, "program")

    def program(self, digest: str) -> Program:
        pipelines = {each.name: each for each in map(self._pipelines.pipeline, self._list("pipelines"))}
        ingress, egress = pipelines["ingress"], pipelines["egress"]
        if shared := set(ingress.tables) & set(egress.tables):
            raise ProgramError(f"program: table {min(shared)} is in both pipelines")
        deparsers = self._list("deparsers")
        order = tuple(checked(each, str, "deparser") for each in objects(deparsers[0], "order", "deparser"))
        for header in order:
            if header not in self._headers:
                raise ProgramError(f"deparser: no header '{header}'")
        parser = self._parsers.parser(self._list("parsers")[0])
        return Program(
            digest=digest,
            headers=self._headers,
            stacks=self._stacks,
            unions=self._declared.unions,
            union_stacks=self._declared.union_stacks,
            value_sets={name: _with_fields(each, parser) for name, each in self._value_sets.items()},
            parser=parser,
            deparser=order,
            deparser_body=self._deparser_body(objects(deparsers[0], "primitives", "deparser")),
            actions=self._actions,
            ingress=ingress,
            egress=egress,
            registers=self._registers,
            counters=self._counters,
            meters=self._meters,
            digests=self._digests,
            calculations=self._calculations,
            checksums=tuple(map(self._checksum, self._list("checksums"))),
            errors=dict(map(_error, self._list("errors"))),
            field_lists=self._field_lists,
            aliases=dict(map(self._alias, self._list("field_aliases"))),
            action_profiles=self._profiles,
            assertions=tuple(self._primitives.assertions),
        )

    def _deparser_body(self, nodes: list[Json]) -> tuple[Statement, ...]:
        for node in nodes:
            if text(node, "op", "deparser") not in _IN_DEPARSER:
                raise UnsupportedConstruct(f"primitive '{node['op']}' in a deparser", "deparser")
        return self._primitives.body(nodes, "deparser")

    def _action(self, node: Json) -> Action:
        where = f"action {text(node, 'name', 'action')}"
        params = tuple(
            Param(text(each, "name", where), _width(number(each, "bitwidth", where), where))
            for each in objects(node, "runtime_data", where)
        )
        primitives = objects(node, "primitives", where)
        body, sources = self._primitives.body(primitives, where), self._primitives.sources(primitives, where)
        return Action(number(node, "id", where), node["name"], params, body, sources)

    def _calculation(self, node: Json) -> Calculation:
        where = f"calculation {text(node, 'name', 'calculation')}"
        algorithm = text(node, "algo", where)
        if algorithm not in _ALGORITHMS and algorithm not in _CUSTOM_CRCS:
            raise UnsupportedConstruct(f"hash algorithm '{algorithm}'", where)
        inputs: list[CalculationInput] = []
        payload = False
        for each in objects(node, "input", where):
            kind = text(each, "type", where)
            if kind == "payload":
                payload = True
                continue
            value = member(each, "value", object, where)
            if kind == "field":
                inputs.append(InputField(_plain(self._expressions.field(value, where), where)))
            elif kind == "hexstr":
                bits = _width(number(each, "bitwidth", where), where)
                inputs.append(InputConst(hexstr(value, where) % (1 << bits), bits))
            elif kind == "header" and isinstance(value, str) and value in self._headers:
                inputs.append(InputHeader(value))
            else:
                raise UnsupportedConstruct(f"calculation input '{kind}'", where)
        if algorithm in _CUSTOM_CRCS:
            return Calculation(
                node["name"], Algorithm.CRC_CUSTOM, tuple(inputs), payload, *_CUSTOM_CRCS[algorithm]
            )
        return Calculation(node["name"], _ALGORITHMS[algorithm], tuple(inputs), payload)

    def _action_profiles(self) -> dict[str, ActionProfile]:
        """Return the profiles of both pipelines; what chooses members joins the calculations."""
        profiles: dict[str, ActionProfile] = {}
        for pipeline in self._list("pipelines"):
            for node in objects(pipeline, "action_profiles", "pipeline"):
                profile = action_profile(node, "action profile")
                if profile.name in profiles:
                    raise ProgramError(f"action profile {profile.name}: declared twice")
                profiles[profile.name] = profile
                if profile.selector is not None:
                    selector = member(node, "selector", dict, f"action profile {profile.name}")
                    selector = self._calculation({**selector, "name": profile.selector})
                    self._calculations[selector.name] = selector
        return profiles

    def _field_list(self, node: Json) -> tuple[int, tuple[FieldRef, ...]]:
        where = f"field list {_name_of(node)}"
        fields = []
        for each in objects(node, "elements", where):
            kind = text(each, "type", where)
            if kind == "hexstr":
                continue  # a constant is kept in any case
            if kind != "field":
                raise UnsupportedConstruct(f"field list element '{kind}'", where)
            fields.append(_plain(self._expressions.field(each.get("value"), where), where))
        return number(node, "id", where), tuple(fields)

    def _alias(self, node: Json) -> tuple[str, FieldRef]:
        if not isinstance(node, list) or len(node) != 2 or not isinstance(node[0], str):
            raise ProgramError(f"field_aliases: {node!r:.60}")
        return node[0], self._field(node[1], "field_aliases")

    def _field(self, value: object, where: str) -> FieldRef:
        field = _plain(self._expressions.field(value, where), where)
        if self._expressions.is_varbit(field):
            raise UnsupportedConstruct("a varbit field in this place", where)
        return field

    def _checksum(self, node: Json) -> Checksum:
        where = f"checksum {text(node, 'name', 'checksum')}"
        if text(node, "type", where) != "generic":
            raise UnsupportedConstruct(f"checksum type '{node['type']}'", where)
        calculation = text(node, "calculation", where)
        if calculation not in self._calculations:
            raise ProgramError(f"{where}: no calculation '{calculation}'")
        condition = node.get("if_cond")
        return Checksum(
            name=node["name"],
            target=_plain(self._expressions.field(node.get("target"), where), where),
            calculation=calculation,
            condition=None if condition is None else self._expressions.boolean(condition, where),
            verify=bool(node.get("verify", True)),
            update=bool(node.get("update", True)),
        )


def _plain(field: object, where: str) -> FieldRef:
    if not isinstance(field, FieldRef):
        raise UnsupportedConstruct("a header's validity in this place", where)
    return field


def _width(bits: int, where: str) -> int:
    if bits < 1:
        raise ProgramError(f"{where}: width {bits}")
    if bits > MAX_WIDTH:
        raise UnsupportedConstruct(f"a value of {bits} bits (more than {MAX_WIDTH})", where)
    return bits


def _value_set(node: Json) -> ValueSet:
    where = f"parser value set {text(node, 'name', 'parser value set')}"
    bits = number(node, "compressed_bitwidth", where)
    size: int = member(node, "max_size", int, where) if node.get("max_size") is not None else _MAX_CELLS
    if bits < 1 or size < 0:
        raise ProgramError(f"{where}: {size} members of {bits} bits")
    return ValueSet(node["name"], bits, size, ())


def _with_fields(value_set: ValueSet, parser: Parser) -> ValueSet:
    """Return the set with the key elements of the states that look into it: one, where they differ."""
    name = value_set.name
    keys = {
        state.key_bits
        for state in parser.states.values()
        for case in state.transitions
        if case.value_set == name
    }
    if len(keys) > 1:  # all that they have in common is how many bits they are together
        return replace(value_set, fields=(value_set.bits,))
    return replace(value_set, fields=keys.pop()) if keys else value_set


def _register(node: Json) -> Register:
    where = f"register {text(node, 'name', 'register')}"
    size, bits = number(node, "size", where), _width(number(node, "bitwidth", where), where)
    if not 1 <= size <= _MAX_CELLS:
        raise ProgramError(f"{where}: {size} cells")
    return Register(node["name"], size, bits)


def _counter(node: Json) -> Counter:
    where = f"counter {text(node, 'name', 'counter')}"
    if node.get("is_direct"):
        return Counter(node["name"], 0, text(node, "binding", where))
    size = number(node, "size", where)
    if size > _MAX_CELLS:
        raise ProgramError(f"{where}: {size} cells")
    return Counter(node["name"], size, None)


def _error(node: Json) -> tuple[str, int]:
    if not isinstance(node, list) or len(node) != 2:
        raise ProgramError(f"errors: {node!r:.60}")
    return checked(node[0], str, "errors"), checked(node[1], int, "errors")
