# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a topology file is said in sentences: the place, what is allowed there, an example."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.harness.effort import examples
from weir.controller import topology_errors
from weir.controller.topology import Topology, TopologyError, leaf_spine, load_topology

PYDANTICS = re.compile(
    r"nput should|ield required|xtra inputs|hould (match|have)|alidation error|instance of|unable to|pydantic"
)
GOOD: dict[str, Any] = {
    "switches": [
        {
            "name": "s1",
            "device_id": 1,
            "grpc": "127.0.0.1:9559",
            "target": "bmv2",
            "thrift": "127.0.0.1:9090",
            "aggregation": {"mac": "02:00:00:00:00:fe", "ip": "10.0.0.254"},
            "tls": {"ca": "ca.pem", "cert": "mine.pem", "key": "mine.key"},
        }
    ],
    "hosts": [
        {"name": "h1", "switch": "s1", "port": 1, "mac": "02:00:00:00:00:01", "ip": "10.0.0.1", "shm": "/x"}
    ],
    "mtu": 1500,
    "qos": {
        "priorities": True,
        "spray": "random",
        "classes": {"AF13": {"trim_at": 12, "mark_at": "never", "queue": 1}},
        "losses": [{"switch": "s1", "port": 1, "direction": "egress", "dscp": "AF11", "probability": 0.1}],
        "queues": [{"switch": "s1", "port": 1, "rate_pps": 2000, "depth": 64}],
    },
}


def complaint(data: Any, folder: Path) -> str:
    """Return what is said of a topology; "" if it is taken."""
    file = folder / "rack.json"
    file.write_text(json.dumps(data))
    try:
        load_topology(file)
    except TopologyError as error:
        assert str(error).startswith(str(file))
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (
            ("switches",),
            None,
            "switches: nothing is written there: leave the line out, or fill it in, for example",
        ),
        (("switches",), [], "switches: there must be at least one, for example  switches: [{name: s1"),
        (("switches", 0), "s1", "switches[0]: 's1' is not a mapping: {name: value}"),
        (("switches", 0, "grcp"), 1, "s1, switches[0].grcp: there is no such setting; did you mean 'grpc'"),
        (
            ("switches", 0, "target"),
            "sfot",
            "s1, switches[0].target: 'sfot' is not one of soft, bmv2 or tofino",
        ),
        (
            ("switches", 0, "name"),
            "s 1",
            "s 1, switches[0].name: 's 1' is not a name: a name begins with a letter",
        ),
        (("switches", 0, "tls", "key"), 7, "s1, switches[0].tls.key: 7 is not the path of a file"),
        (("hosts", 0, "port"), 99999, "h1, hosts[0].port: 99999 is out of range: it must be less than 511"),
        (
            ("hosts", 0, "port"),
            "one",
            "h1, hosts[0].port: 'one' is not a whole number, for example  port: 1",
        ),
        (("hosts", 0, "ip"), 10, "h1, hosts[0].ip: 10 is not text: put it in quotes"),
        (("hosts", 0, "mac"), "zz", "h1, hosts[0].mac: 'zz' is not a MAC address; write six hex pairs"),
        (
            ("rackets",),
            1,
            "rackets: there is no such setting here: there are switches, hosts, links, mtu, qos",
        ),
        (("mtu",), 100, "mtu: 100 is out of range: it must be at least 1280, for example  mtu: 1500"),
        (("qos", "spray"), "zig", "qos.spray: 'zig' is not one of hash, round_robin, random or least_loaded"),
        (("qos", "classes", "AF99"), {}, "qos.classes.AF99: 'AF99' is not a DSCP: 0 to 63, or its name"),
        (
            ("qos", "classes", "AF13", "trim_at"),
            "x",
            "trim_at: 'x' is not a number of packets from 0 to 65534, or never",
        ),
        (("qos", "priorities"), "maybe", "qos.priorities: 'maybe' is not true or false"),
        (("links",), [{"ends": ["s1:1"]}], "links[0].ends[1]: is missing, for example  ends: ["),
    ],
)
def test_a_sentence_names_the_place_what_is_allowed_and_an_example(
    place: tuple[int | str, ...], value: Any, says: str, tmp_path: Path
) -> None:
    assert complaint(GOOD, tmp_path) == ""
    data = copy.deepcopy(GOOD)
    inner: Any = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    words = complaint(data, tmp_path)
    assert says in words
    assert not PYDANTICS.search(words)


def test_what_is_missing_is_said_once_and_nothing_else(tmp_path: Path) -> None:
    data = copy.deepcopy(GOOD)
    del data["switches"][0]["grpc"]
    assert complaint(data, tmp_path).splitlines()[1:] == [
        '  s1, switches[0].grpc: is missing, for example  grpc: "127.0.0.1:9559"'
    ]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in inner:
        yield (*before, step)
        yield from places(each, (*before, step))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CLOS = leaf_spine(2, 2, 1).model_dump(mode="json", exclude_none=True)


@given(
    st.sampled_from([GOOD, CLOS]).flatmap(
        lambda base: st.tuples(st.just(base), st.sampled_from([*places(base)]))
    ),
    ANYTHING,
)
@settings(max_examples=examples(300), deadline=None)
def test_no_sentence_is_pydantics(where: tuple[Any, tuple[Any, ...]], value: Any) -> None:
    base, place = where
    data = copy.deepcopy(base)
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    try:
        Topology.model_validate(data)
    except topology_errors.ValidationError as error:
        lines = list(topology_errors.sentences(error, Topology, data))
        assert lines
        assert all(line.strip() and not PYDANTICS.search(line.replace(repr(value), "")) for line in lines)


def test_every_setting_has_an_example() -> None:
    def settings_of(model: type[BaseModel]) -> Iterator[str]:
        for name, field in model.model_fields.items():
            yield name
            for inner in topology_errors._models(field.annotation):
                yield from settings_of(inner)

    assert set(settings_of(Topology)) <= topology_errors._EXAMPLES.keys()
