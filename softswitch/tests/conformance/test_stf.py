# SPDX-License-Identifier: Apache-2.0
"""STF as the harness reads it, and a case of our own that passes, fails or is refused as it should."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import Case, Compiled
from tests.conformance.names import Names
from tests.conformance.run import Outcome, Verdict, fits, run
from tests.conformance.stf import Add, Call, Command, Expect, Packet, SetDefault, StfError, parse
from tests.harness.keys import Lpm, Optional, Range, Ternary
from tests.programs import FOLDER

TEXT = """
# a comment
packet 0 0A 0b0C   # another
expect 3 0a** 0c $
EXPECT 4
add ingress.t 7 hdr.a.x:0x1* extra$0.y:12 "key.odd name":0b01 drop(port:3, why:0xff) = A
setdefault t act(a:1)
mc_node_create 400 6 7
wait
"""


def test_statements() -> None:
    assert list(parse(TEXT)) == [
        Packet(0, bytes.fromhex("0a0b0c")),
        Expect(3, "0a**0c$"),
        Expect(4, None),
        Add(
            "ingress.t",
            7,
            (("hdr.a.x", "0x1*"), ("extra$0.y", "12"), ("key.odd name", "0b01")),
            Call("drop", (("port", "3"), ("why", "0xff"))),
        ),
        SetDefault("t", Call("act", (("a", "1"),))),
        Command("mc_node_create", (400, 6, 7)),
    ]


@pytest.mark.parametrize(
    "line", ["packet 0 0", "packet x 00", "add t", "expect 1 0g", "frobnicate 1", "wait\nexpect"]
)
def test_what_is_no_statement_is_named_by_its_line(line: str) -> None:
    with pytest.raises(StfError, match=f"line {line.count(chr(10)) + 1}: "):
        list(parse(line))


@pytest.mark.parametrize(
    ("frame", "pattern", "wanted"),
    [
        ("0a0b", "0a0b", True),
        ("0a0b", "0a", True),
        ("0a0b", "0a$", False),
        ("0a0b", "0a0b$", True),
        ("0a", "0a0b", False),
        ("0a0b", "**0b", True),
        ("0a0b", "*b0b", False),
    ],
)
def test_patterns(frame: str, pattern: str, wanted: bool) -> None:
    assert fits(frame, pattern) is wanted


def table(*keys: tuple[str, str], kind: str) -> Any:
    """Return a program with one table `c.t` and one action `c.act(p)`."""
    return {
        "actions": [{"name": "c.act", "runtime_data": [{"name": "p", "bitwidth": 9}]}],
        "header_types": [{"name": "h_t", "fields": [["f", 8, False]]}],
        "headers": [{"name": "h", "header_type": "h_t"}],
        "pipelines": [
            {
                "tables": [
                    {
                        "name": "c.t",
                        "match_type": kind,
                        "action_ids": [0],
                        "key": [
                            {"name": name, "match_type": each, "target": ["h", "f"]} for name, each in keys
                        ],
                    }
                ]
            }
        ],
    }


def entry(text: str, *keys: tuple[str, str], kind: str = "ternary") -> Any:
    (statement,) = parse(text)
    assert isinstance(statement, Add)
    return Names(table(*keys, kind=kind)).entry(statement)


def test_an_entry_in_the_words_of_the_program() -> None:
    """Ends of names stand for names; key fields that are left out may be anything; P4Runtime's priorities."""
    keys = [("h.a", "ternary"), ("h.b", "lpm"), ("h[1].c", "exact"), ("h.d", "range"), ("h.e", "optional")]
    assert entry("add t 4 h.a:0x1* b:0x0a0* h$1.c:9 act(p:3)", *keys) == (
        "c.t",
        [Ternary(0x10, 0xF0), Lpm(0x0A00, 12), 9, Range(0, 255), Optional(None)],
        "c.act",
        [3],
        5,
    )
    assert entry("add t h.b:10/8 act(p:3)", ("h.b", "lpm"), kind="lpm")[1:] == ([Lpm(10, 8)], "c.act", [3], 0)


@pytest.mark.parametrize(
    "text",
    [
        "add u 1 h.a:0x1 act(p:1)",
        "add t 1 h.z:0x1 act(p:1)",
        "add t 1 h.a:0x1 act(q:1)",
        "add t h.a:0x1 act(p:1)",
    ],
)
def test_names_that_the_program_lacks(text: str) -> None:
    with pytest.raises(StfError):
        entry(text, ("h.a", "ternary"))


def outcome(tmp_path: Path, stf: str, program: str) -> Outcome:
    test = tmp_path / "case.stf"
    test.write_text(stf)
    return run(Case("case", test.with_suffix(".p4"), test), Compiled(FOLDER / program, None), "soft")


REPLICAS = """
mc_mgrp_create 7
mc_node_create 21 3 4
mc_node_create 22 3
mc_node_associate 7 0
mc_node_associate 7 1
mirroring_add 9 6
packet 5 02 0007 00 aa
expect 4 05 0004 0015 0005 0005 ******** **** 02 0007 00 aa $
expect 3 05 0003 0015
expect 3 05 0003 0016
packet 5 04 0009 00
expect 6 01 0006
expect 1 00 0001
"""


def test_frames_are_compared_per_port(tmp_path: Path) -> None:
    assert outcome(tmp_path, REPLICAS, "traffic.json") == Outcome(Verdict.PASS)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("expect 6 01 0006", "expect 6 01 0007", "port 6, frame 1: "),
        ("expect 6 01 0006\n", "", ""),  # nobody looks at port 6 then
        ("expect 1 00 0001", "", ""),
        ("expect 1 00 0001", "expect 2", "port 2: 0 frames left instead of 1"),
        ("expect 3 05 0003 0016", "", "port 3: 2 frames left instead of 1"),
        ("aa $", "$", "port 4, frame 1: "),
        ("mirroring_add 9 6", "mirroring_add 9", "mirroring_add"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in REPLICAS
    got = outcome(tmp_path, REPLICAS.replace(old, new), "traffic.json")
    assert got.verdict is (Verdict.FAIL if reason else Verdict.PASS)
    assert reason in got.reason


def test_entries_reach_the_tables(tmp_path: Path) -> None:
    rest = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d"
    query = "05" + rest  # the table `masks`, on ip (bytes 7 to 10)
    stf = f"""
    setdefault masks NoAction()
    add In.masks 1 query.ip:0x070809** number(value:0x99)
    add In.masks 2 query.ip:0x0708090a number(value:77)
    packet 1 {query}
    expect 3 00 01 0000004d *
    packet 1 {query.replace("090a", "090b")}
    expect 3 00 01 00000099
    packet 1 {query.replace("0809", "0909")}
    expect 3 00 00 00000000
    """
    assert outcome(tmp_path, stf, "matching.json") == Outcome(Verdict.PASS)
    twice = stf + "add In.masks 2 query.ip:0x0708090a number(value:78)"
    assert outcome(tmp_path, twice, "matching.json").verdict is Verdict.REFUSED


def test_a_program_that_the_switch_does_not_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.json").write_text("{}")
    got = outcome(tmp_path, "", str(tmp_path / "program.json"))
    assert got.verdict is Verdict.REFUSED
    assert "no BMv2 program" in got.reason
