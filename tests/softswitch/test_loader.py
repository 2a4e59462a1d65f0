# SPDX-License-Identifier: Apache-2.0
"""Loading: what is no program, what contradicts itself, and what is refused by name."""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.codegen.module import generate
from softswitch.errors import ProgramError, UnsupportedConstruct
from softswitch.program import load_program
from tests.softswitch.programs import FOLDER, NAMES, program, raw

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
    """A field of the fourth header type."""
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
    ("no pipeline 'egress'", lambda r: r["pipelines"].pop()),
    ("no header type 'nothing'", lambda r: r["headers"][2].update(header_type="nothing")),
    ("no header 'nothing'", lambda r: r["deparsers"][0]["order"].append("nothing")),
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


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_spoiled_programs_load_or_are_refused(seed: int) -> None:
    """Whatever is changed in the JSON: a program, or a ProgramError; never another exception."""
    rng = random.Random(seed)
    root = raw(rng.choice(("matching", "parsing", "traffic", "state", "meters")))
    for _ in range(rng.randrange(1, 4)):
        _spoil(root, rng)
    try:
        load(root)
    except ProgramError as error:
        assert str(error)


def _spoil(root: Any, rng: random.Random) -> None:
    """Replaces, removes or doubles one random node."""
    node = root
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.9:
            node = inner
            continue
        break
    what = rng.randrange(4)
    if what == 0:
        node[key] = rng.choice([None, 0, -1, 1 << 40, "", "0x", "query", [], {}, True, ["query", "ip"], 3.5])
    elif what == 1 and isinstance(node, dict):
        del node[key]
    elif what == 2 and isinstance(node, list):
        node.append(copy.deepcopy(inner))
    elif isinstance(inner, int) and not isinstance(inner, bool):
        node[key] = inner + rng.choice((-1, 1, 1000))
    elif isinstance(inner, str):
        node[key] = inner + "x"
