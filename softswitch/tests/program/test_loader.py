# SPDX-License-Identifier: Apache-2.0
"""Loading: what is no program, what contradicts itself, and what is refused by name."""

import copy
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from softp4.codegen.module import generate
from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.loader import load_program
from tests.fuzzing.loader import SpoiledPrograms, outcome
from tests.programs import FOLDER, NAMES, program, raw

Spoil = Callable[[Any], object]


def load(root: Any) -> None:
    generate(load_program(json.dumps(root).encode()))


@pytest.mark.parametrize("name", NAMES)
def test_programs_load_and_are_frozen(name: str) -> None:
    loaded = program(name)
    assert loaded == load_program((FOLDER / f"{name}.json").read_bytes())
    with pytest.raises(AttributeError):
        loaded.digest = ""  # type: ignore[misc]
    assert generate(loaded) == generate(loaded), "the same program must give the same code, or no cache hits"


def test_what_is_no_program() -> None:
    for data, message in [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "no BMv2 program"),
        (b"[]", "no BMv2 program"),
        (b"pkg_info {}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ]:
        with pytest.raises(ProgramError, match=message):
            load_program(data)
    with pytest.raises(FileNotFoundError):
        load_program(Path("no-such-program.json"))


def test_another_major_version() -> None:
    root = raw("state")
    root["__meta__"]["version"] = [3, 0]
    with pytest.raises(ProgramError, match=r"version \[3, 0\]"):
        load(root)


def action(root: Any, name: str) -> Any:
    return next(each for each in root["actions"] if each["name"] == name)


def table(root: Any, name: str) -> Any:
    return next(t for p in root["pipelines"] for t in p["tables"] if t["name"] == name)


def primitive(op: str, *parameters: Any) -> Spoil:
    return lambda root: action(root, "In.miss")["primitives"].append(
        {"op": op, "parameters": list(parameters)}
    )


def _element(root: Any, field: str) -> Any:
    """Return a field of the fourth header type."""
    kind = root["header_types"][3]["name"]
    header = next(each["name"] for each in root["headers"] if each["header_type"] == kind)
    return {"type": "field", "value": [header, field]}


REFUSED: list[tuple[str, Spoil]] = [
    ("a meter of 3 rates", lambda r: r["meter_arrays"].append({"name": "m", "rate_count": 3})),
    (
        "a meter of 'bits'",
        lambda r: r["meter_arrays"].append({"name": "m", "rate_count": 2, "type": "bits"}),
    ),
    (
        "digest element 'hexstr'",
        lambda r: r["learn_lists"].append({"name": "d", "elements": [{"type": "hexstr"}]}),
    ),
    ("extern instances", lambda r: r["extern_instances"].append({"name": "e"})),
    ("table type 'odd'", lambda r: table(r, "In.acl").update(type="odd")),
    ("match type 'fuzzy'", lambda r: table(r, "In.acl")["key"][0].update(match_type="fuzzy")),
    ("primitive 'x' in a deparser", lambda r: r["deparsers"][0]["primitives"].append({"op": "x"})),
    (
        "operator '+++'",
        primitive(
            "assign",
            {"type": "field", "value": ["query", "ip"]},
            {
                "type": "expression",
                "value": {
                    "op": "+++",
                    "left": {"type": "hexstr", "value": "0x1"},
                    "right": {"type": "hexstr", "value": "0x1"},
                },
            },
        ),
    ),
    (
        "an intermediate value of 20001 bits",
        primitive(
            "assign",
            {"type": "field", "value": ["query", "ip"]},
            {
                "type": "expression",
                "value": {
                    "op": ">>",
                    "left": {
                        "type": "expression",
                        "value": {
                            "op": "<<",
                            "left": {"type": "field", "value": ["query", "ip6"]},
                            "right": {"type": "hexstr", "value": "0x4e20"},
                        },
                    },
                    "right": {"type": "hexstr", "value": "0x80"},
                },
            },
        ),
    ),
]


@pytest.mark.parametrize(("construct", "spoil"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_cannot_be_run_is_refused_by_name(construct: str, spoil: Spoil) -> None:
    root = raw("matching")
    spoil(root)
    with pytest.raises(UnsupportedConstruct) as caught:
        load(root)
    assert construct in str(caught.value)
    assert caught.value.where


CONTRADICTIONS: list[tuple[str, Spoil]] = [
    ("not for v1model", lambda r: r["pipelines"].pop()),
    ("no header type 'nothing'", lambda r: r["headers"][2].update(header_type="nothing")),
    ("no header 'nothing'", lambda r: r["deparsers"][0]["order"].append("nothing")),
    (
        "'In.acl' is declared twice",
        lambda r: r["pipelines"][0]["conditionals"][0].update(name="In.acl"),
    ),
    ("no state 'nothing'", lambda r: r["parsers"][0].update(init_state="nothing")),
    ("no table or conditional 'nothing'", lambda r: r["pipelines"][0].update(init_table="nothing")),
    ("can follow itself", lambda r: table(r, "In.acl").update(base_default_next="In.acl")),
    ("no action 99", lambda r: table(r, "In.acl")["action_ids"].append(99)),
    ("takes 2 parameters, not 0", primitive("assign")),
    ("jump to primitive 17", primitive("_jump", {"type": "hexstr", "value": "0x11"})),
    ("no counter_array", primitive("count", {"type": "counter_array", "value": "c"}, {})),
    ("no meter_array", primitive("execute_meter", {"type": "meter_array", "value": "m"}, {}, {})),
    (
        "no learn list 7",
        primitive("generate_digest", {"type": "hexstr", "value": "0x0"}, {"type": "hexstr", "value": "0x7"}),
    ),
    ("no direct meter 'm'", lambda r: table(r, "In.acl").update(direct_meters="m")),
    ("nothing in it", lambda r: r["learn_lists"].append({"name": "d", "id": 1, "elements": []})),
    (
        "no register_array '[]'",
        primitive("register_write", {"type": "register_array", "value": []}, {}, {}),
    ),
    ("declared twice", lambda r: r["headers"].append(copy.deepcopy(r["headers"][2]))),
    (
        "a varbit field in this place",
        lambda r: (
            r["header_types"][3].update(max_length=100),
            r["header_types"][3]["fields"].append(["v", "*"]),
            r["learn_lists"].append({"name": "d", "id": 1, "elements": [_element(r, "v")]}),
        ),
    ),
    ("no 'max_length'", lambda r: r["header_types"][3]["fields"].append(["v", "*"])),
    ("'union_type'", lambda r: r["header_unions"].append({"name": "u"})),
    ("'union_type'", lambda r: r["header_union_stacks"].append({"name": "u"})),
    ("'compressed_bitwidth'", lambda r: r["parse_vsets"].append({"name": "v"})),
    ("no whole number of bytes", lambda r: r["header_types"][3]["fields"].append(["odd", 3, False])),
]


@pytest.mark.parametrize(("message", "spoil"), CONTRADICTIONS, ids=[name for name, _ in CONTRADICTIONS])
def test_contradictions_are_named(message: str, spoil: Spoil) -> None:
    root = raw("matching")
    spoil(root)
    with pytest.raises(ProgramError) as caught:
        load(root)
    assert message in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_programs_load_or_are_refused(seed: int) -> None:
    """Whatever is changed in the JSON: a program, or words; soon, and never another exception."""
    sources = [FOLDER / f"{name}.json" for name in ("matching", "parsing", "traffic", "state", "control")]
    outcomes = [outcome(data) for data in islice(SpoiledPrograms(sources, seed), 40)]
    survivors = sum(done.text is not None for done in outcomes)
    assert 0 < survivors < len(outcomes), "changes are neither all harmless nor all fatal"


def _standard(root: Any, name: str, bits: int) -> None:
    """Another width for a field, and a field more so that all are whole bytes."""
    fields = next(each["fields"] for each in root["header_types"] if each["name"] == "standard_metadata")
    field = next(each for each in fields if each[0] == name)
    fields.append(["filled", (field[1] - bits) % 8 or 8, False])
    field[1] = bits


TOO_MUCH: list[tuple[str, Spoil]] = [
    ("a field of 2049 bits", lambda r: r["header_types"][3]["fields"].append(["wide", 2049, False])),
    (
        "a header of more than 4216 bytes",
        lambda r: r["header_types"][3]["fields"].extend([f"f{i}", 2048, False] for i in range(17)),
    ),
    (
        "registers and counters of more than 4 GiB",
        lambda r: r["register_arrays"].append({"name": "r", "id": 9, "size": 1 << 28, "bitwidth": 2048}),
    ),
    ("nested", primitive("assign", {"type": "field", "value": ["query", "ip"]}, "deep")),
    (
        "field list 4294967296 is not in",
        lambda r: r["field_lists"].append({"name": "f", "id": 1 << 32, "elements": []}),
    ),
    ("errors: ", lambda r: r["errors"].append([])),
    ("'standard_metadata.mcast_grp' has 17 bits, more than 16", lambda r: _standard(r, "mcast_grp", 17)),
    ("'standard_metadata.egress_rid' has 65 bits, more than 64", lambda r: _standard(r, "egress_rid", 65)),
]


@pytest.mark.parametrize(("message", "spoil"), TOO_MUCH, ids=[name for name, _ in TOO_MUCH])
def test_what_no_switch_could_hold_is_refused(message: str, spoil: Spoil) -> None:
    root = raw("matching")
    spoil(root)
    operand = {"type": "hexstr", "value": "0x1"}
    for _ in range(390):
        operand = {"type": "expression", "value": {"op": "~", "left": None, "right": operand}}
    for each in (p for a in root["actions"] for p in a["primitives"] if "deep" in p["parameters"]):
        each["parameters"] = [each["parameters"][0], operand]
    with pytest.raises(ProgramError) as caught:
        load(root)
    assert message in str(caught.value)
