# SPDX-License-Identifier: Apache-2.0
"""Programs of older compilers: whatever BMv2 takes means the same here, or is refused with a message.

SOFTP4_BMV2_PROGRAMS names folders with compiled programs of BMv2's and PI's own, such as checkouts of both.
"""

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from softp4.codegen.module import generate
from softp4.program.errors import ProgramError
from softp4.program.loader import Program, load_program
from softp4.runtime.queueing import Queueing
from softp4.switch import Switch
from tests.aged import aged, aged_program, with_own_metadata, with_unique_actions
from tests.fuzzing.loader import SpoiledPrograms, outcome
from tests.programs import NAMES, pack, program, raw

_PORT = 3
_FOLDERS = [Path(each) for each in os.environ.get("SOFTP4_BMV2_PROGRAMS", "").split(os.pathsep) if each]


def load(root: Any) -> Program:
    loaded = load_program(json.dumps(root).encode())
    generate(loaded)
    return loaded


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_in_the_older_way_is_the_same_program(name: str) -> None:
    root = aged(raw(name))
    today, older = load(with_unique_actions(raw(name))), load(root)
    profiles = {key: replace(each, size=0) for key, each in today.action_profiles.items()}
    moved = {
        each["act_prof_name"] for p in root["pipelines"] for each in p["tables"] if "act_prof_name" in each
    }
    expected = {key: profiles[key] if key in moved else each for key, each in today.action_profiles.items()}
    assert replace(older, digest=today.digest) == replace(today, action_profiles=expected)


def test_the_programs_are_aged() -> None:
    """Otherwise, the test above would compare programs with themselves."""
    tables = [table for name in NAMES for p in aged(raw(name))["pipelines"] for table in p["tables"]]
    calls = [call for name in NAMES for p in aged(raw(name))["pipelines"] for call in p["action_calls"]]
    assert any("action_ids" not in table for table in tables)
    assert any("act_prof_name" in table and "selector" in table for table in tables)
    assert any("entries" in table and "max_size" not in table for table in tables)
    assert calls


@pytest.mark.parametrize("name", ["traffic", "queues"])
def test_metadata_of_headers_of_their_own_is_found(name: str) -> None:
    older, today = aged_program(name), program(name)
    for field in ("mcast_grp", "egress_rid", "enq_timestamp", "deq_qdepth", "priority"):
        ref = older.intrinsic(field)
        assert ref is not None
        assert ref.header in ("intrinsic_metadata", "queueing_metadata")
        assert today.intrinsic(field) == replace(ref, header="standard_metadata")
    generate(older)


def test_a_program_may_have_no_multicast() -> None:
    root = raw("matching")
    root["field_aliases"] = []
    kind = next(each for each in root["header_types"] if each["name"] == "standard_metadata")
    kind["fields"] = [field for field in kind["fields"] if field[0] not in ("mcast_grp", "egress_rid")]
    assert load(root).intrinsic("mcast_grp") is None


@pytest.mark.parametrize("limit", [None, Queueing(rate_bps=1_000_000)])
def test_the_queue_is_told_where_a_program_asks(limit: Queueing | None) -> None:
    """BMv2's queueing_metadata.qid, which v1model does not have: the priority that ingress chose."""
    root = with_own_metadata(aged(raw("queues")))
    kind = next(each for each in root["header_types"] if each["name"] == "queueing_metadata_t")
    kind["fields"].append(["qid", 8])
    into = {"type": "field", "value": ["seen", "priority"]}
    [call] = [call for a in root["actions"] for call in a["primitives"] if into in call["parameters"]]
    call["parameters"][1] = {"type": "field", "value": ["queueing_metadata", "qid"]}
    with Switch(load(root)) as switch:
        switch.queues(_PORT).set(limit)
        for priority in (6, 0, 3):
            sent = switch.process(1, pack([(0, 8), (priority, 8), (_PORT, 16), (0, 64)]), 0)
            while not sent:
                due = switch.deadline()
                assert due is not None
                sent = switch.step(due)
            [(_, frame)] = sent
            assert frame[1] == priority


def test_a_checksum_of_type_ipv4_is_that_of_its_header() -> None:
    """BMv2's name for a header's fields but the one that holds the sum."""
    root = raw("externs")
    today = load(copy.deepcopy(root))
    [checked] = [each for each in root["checksums"] if each["verify"]]
    checked["type"] = "ipv4"
    del checked["calculation"]
    older = load(root)
    [before] = [each for each in today.checksums if each.name == checked["name"]]
    [after] = [each for each in older.checksums if each.name == checked["name"]]
    assert replace(after, calculation=before.calculation) == before
    calculations = today.calculations[before.calculation], older.calculations[after.calculation]
    assert calculations[0].inputs == calculations[1].inputs
    assert calculations[0].algorithm == calculations[1].algorithm


def test_verify_may_have_a_number_and_field_lists_constants() -> None:
    root = raw("parsing")
    calls = [op for state in root["parsers"][0]["parse_states"] for op in state["parser_ops"]]
    verify = next(op for op in calls if op["op"] == "verify")
    today = load(copy.deepcopy(root))
    verify["parameters"][1] = int(verify["parameters"][1]["value"], 16)
    assert replace(load(root), digest=today.digest) == today

    root = raw("traffic")
    today = load(copy.deepcopy(root))
    root["field_lists"][0]["elements"].append({"type": "hexstr", "value": "0x01", "bitwidth": 8})
    assert replace(load(root), digest=today.digest) == today


def test_a_value_set_may_serve_keys_of_several_shapes() -> None:
    """Members are then what all of them have in common: bits, one after another."""
    root = raw("value_sets")
    name = root["parse_vsets"][0]["name"]
    states = root["parsers"][0]["parse_states"]
    state = next(each for each in states if any(case["value"] == name for case in each["transitions"]))
    [field] = state["transition_key"][:1]
    total = root["parse_vsets"][0]["compressed_bitwidth"]
    half = {"type": "lookahead", "value": [0, total // 2]}
    other = {"type": "lookahead", "value": [total // 2, total - total // 2]}
    states.append({**state, "name": "again", "id": 1000, "parser_ops": [], "transition_key": [half, other]})
    state["transitions"][-1]["next_state"] = "again"
    assert field != half
    assert load(root).value_sets[name].fields == (total,)


Spoil = Callable[[Any], object]
_CONTRADICTIONS: list[tuple[str, Spoil]] = [
    ("'nobody': no action has that name", lambda r: _first_table(r)["actions"].append("nobody")),
    ("2 actions have that name", lambda r: r["actions"].append({**r["actions"][_used(r)], "id": 1000})),
    ("no action 1000", lambda r: r["pipelines"][0]["action_calls"][0].update(action_id=1000)),
    ("no 'action_id'", lambda r: r["pipelines"][0]["action_calls"][0].pop("action_id")),
    (
        "no table or conditional 'gone'",
        lambda r: r["pipelines"][0]["action_calls"][0].update(next_node="gone"),
    ),
    ("not for v1model", lambda r: r["parsers"].append(r["parsers"][0])),
    ("pipelines: main_control, egress", lambda r: r["pipelines"][0].update(name="main_control")),
]


def _first_table(root: Any) -> Any:
    return next(t for p in root["pipelines"] for t in p["tables"] if "action_ids" not in t)


def _used(root: Any) -> int:
    names = [each["name"] for each in root["actions"]]
    return names.index(_first_table(root)["actions"][0])


@pytest.mark.parametrize(("words", "spoil"), _CONTRADICTIONS, ids=[words for words, _ in _CONTRADICTIONS])
def test_what_contradicts_itself_is_refused_in_words(words: str, spoil: Spoil) -> None:
    root = aged(raw("matching"))
    spoil(root)
    with pytest.raises(ProgramError) as caught:
        load(root)
    assert words in str(caught.value)


@pytest.mark.parametrize("seed", range(3))
def test_spoiled_older_programs_load_or_are_refused(seed: int, tmp_path: Path) -> None:
    sources = []
    for name in ("matching", "profiles", "traffic"):
        sources.append(tmp_path / f"{name}.json")
        sources[-1].write_text(json.dumps(with_own_metadata(aged(raw(name)))))
    outcomes = [outcome(data) for data in islice(SpoiledPrograms(sources, seed), 30)]
    assert 0 < sum(done.text is not None for done in outcomes) < len(outcomes)


def _compiled() -> list[Path]:
    """Return what may be compiled programs: JSON objects with pipelines and a parser."""
    found = []
    for path in sorted(path for folder in _FOLDERS for path in folder.rglob("*.json")):
        try:
            root = json.loads(path.read_bytes())
        except ValueError:
            continue
        if isinstance(root, dict) and root.get("pipelines") and root.get("parsers"):
            found.append(path)
    return found


@pytest.mark.skipif(not _FOLDERS, reason="needs folders with BMv2's programs in SOFTP4_BMV2_PROGRAMS")
def test_all_of_bmv2s_own_programs_load() -> None:
    paths = _compiled()
    assert paths, f"no compiled program under {_FOLDERS}"
    refused = {}
    for path in paths:
        try:
            generate(load_program(path))
        except ProgramError as error:
            refused[path] = str(error)
    assert [path for path, words in refused.items() if "not for v1model" not in words] == [], refused
