# SPDX-License-Identifier: Apache-2.0
"""A topology file is either right, or refused with every mistake named where it is."""

import json
from pathlib import Path

import pytest

from weir.controller.topology import (
    Topology,
    TopologyError,
    leaf_spine,
    leaf_spine_core,
    load_topology,
    single_switch,
    with_files,
)
from weir.controller.wiring import Pod

YAML = """
switches:
  - name: s1
    device_id: 1
    grpc: 127.0.0.1:9559
    program: weir_v1model
    aggregation: {mac: "02:00:00:00:00:fe", ip: 10.0.0.254}
hosts:
  - {name: h1, switch: s1, port: 1, mac: "02:00:00:00:00:01", ip: 10.0.0.1, shm: /dev/shm/weir-s1}
  - {name: h2, switch: s1, port: 2, mac: "02:00:00:00:00:02", ip: 10.0.0.2, shm: /dev/shm/weir-s1}
"""


def _load(tmp_path: Path, text: str, name: str = "topology.yaml") -> Topology:
    path = tmp_path / name
    path.write_text(text)
    return load_topology(path)


def test_yaml_file_is_what_single_switch_makes(tmp_path: Path) -> None:
    assert _load(tmp_path, YAML) == single_switch(2, "127.0.0.1:9559", "/dev/shm/weir-s1")


def test_json_round_trip(tmp_path: Path) -> None:
    topology = single_switch(32, "unix:/tmp/switch.sock")
    assert _load(tmp_path, topology.model_dump_json(), "topology.json") == topology


def test_hosts_of_a_switch_come_by_port() -> None:
    topology = single_switch(12, "127.0.0.1:1")
    assert [host.port for host in topology.hosts_of("s1")] == list(range(1, 13))
    assert topology.hosts_of("s2") == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("port: 2", "port: 1", "switch port s1 / 1 is used 2 times (by h1, h2): give each a port of its own"),
        ("name: h2", "name: h1", "host name h1 is used 2 times"),
        ("00:00:02", "00:00:01", "MAC address 02:00:00:00:00:01 is used 2 times (by h1, h2)"),
        ("ip: 10.0.0.2,", "ip: 10.0.0.1,", "IP address 10.0.0.1 is used 2 times"),
        ("h2, switch: s1", "h2, switch: s9", "host h2 is on switch 's9', which is not listed (known: s1)"),
        ("00:00:02", "00:00:fe", "host h2 has the aggregation address of switch s1"),
        ("port: 2", "port: 511", "h2, hosts[1].port: 511 is out of range: it must be less than 511"),
        ('"02:00:00:00:00:02"', '"01:00:5e:00:00:02"', "hosts[1].mac: 01:00:5e:00:00:02 is a group"),
        ('"02:00:00:00:00:02"', '"2:0:0:0:0:2"', "hosts[1].mac: '2:0:0:0:0:2' is not a MAC address"),
        ("ip: 10.0.0.2,", "ip: 10.0.0,", "hosts[1].ip: '10.0.0' is not an IPv4 address"),
        ("127.0.0.1:9559", "127.0.0.1", "switches[0].grpc: '127.0.0.1' is not a service address"),
        ("port: 2", "prot: 2", "h2, hosts[1].prot: there is no such setting; did you mean 'port'"),
        (
            "program: weir_v1model",
            "lanes: 64",
            "lanes are for target tofino: bmv2 takes packets of any number",
        ),
    ],
)
def test_a_mistake_is_named_where_it_is(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert YAML.count(old) >= 1
    head, _, tail = YAML.rpartition(old)
    with pytest.raises(TopologyError) as caught:
        _load(tmp_path, head + new + tail)
    assert says in str(caught.value)
    assert "topology.yaml" in str(caught.value)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(TopologyError) as caught:
        _load(tmp_path, YAML.replace("port: 2", "port: 1").replace("name: h2", "name: h1"))
    assert "host name h1" in str(caught.value)
    assert "switch port s1 / 1" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switches: [", "is not YAML"),
        ("just words", "is a mapping"),
        ("hosts: []", "switches: is missing"),
    ],
)
def test_a_file_that_is_no_topology(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        _load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"cannot read topology file .*nowhere.yaml: No such file"):
        load_topology(tmp_path / "nowhere.yaml")


def test_single_switch_has_room_for_253_hosts() -> None:
    hosts = single_switch(253, "127.0.0.1:1").hosts
    assert (hosts[252].name, hosts[252].mac, hosts[252].ip) == ("h253", "02:00:00:00:00:fd", "10.0.0.253")
    for workers in (0, 254):
        with pytest.raises(TopologyError, match="1 to 253 hosts"):
            single_switch(workers, "127.0.0.1:1")


def test_json_mistake_says_json(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="is not JSON"):
        _load(tmp_path, json.dumps({"switches": []})[:-1], "topology.json")


# ---- two tiers

TWO_TIERS = """
switches:
  - {name: leaf1, grpc: "127.0.0.1:1", aggregation: {mac: "02:00:00:00:01:fe", ip: 10.0.1.254}}
  - {name: leaf2, grpc: "127.0.0.1:2", aggregation: {mac: "02:00:00:00:02:fe", ip: 10.0.2.254}}
  - {name: spine1, grpc: "127.0.0.1:3", aggregation: {mac: "02:00:00:01:01:fe", ip: 10.1.1.254}}
  - {name: spine2, grpc: "127.0.0.1:4", aggregation: {mac: "02:00:00:01:02:fe", ip: 10.1.2.254}}
hosts:
  - {name: h1, switch: leaf1, port: 1, mac: "02:00:00:00:01:01", ip: 10.0.1.1}
  - {name: h2, switch: leaf2, port: 1, mac: "02:00:00:00:02:01", ip: 10.0.2.1}
links:
  - {ends: [leaf1:2, spine1:1]}
  - {ends: [leaf1:3, spine2:1]}
  - {ends: [leaf2:2, spine1:2]}
  - {ends: [leaf2:3, spine2:2]}
"""


def test_two_tiers_are_what_leaf_spine_makes(tmp_path: Path) -> None:
    numbers = {"leaf1": 1, "leaf2": 2, "spine1": 3, "spine2": 4}
    made = leaf_spine(2, 2, 1, grpc=lambda name: f"127.0.0.1:{numbers[name]}", target="bmv2")
    assert _load(tmp_path, TWO_TIERS) == made
    assert _load(tmp_path, made.model_dump_json(), "topology.json") == made


def test_roles_follow_from_the_links() -> None:
    topology = leaf_spine(3, 2, 2)
    assert [leaf.name for leaf in topology.leaves] == ["leaf1", "leaf2", "leaf3"]
    assert [spine.name for spine in topology.spines] == ["spine1", "spine2"]
    assert [(port, other.name) for port, other in topology.neighbours("leaf2")] == [
        (3, "spine1"),
        (4, "spine2"),
    ]
    assert [(port, other.name) for port, other in topology.neighbours("spine2")] == [
        (1, "leaf1"),
        (2, "leaf2"),
        (3, "leaf3"),
    ]
    hosts = {host.name: (host.switch, host.port, host.ip) for host in topology.hosts}
    assert hosts["h4"] == ("leaf2", 2, "10.0.2.2")
    assert len({host.mac for host in topology.hosts} | {s.aggregation.mac for s in topology.switches}) == 11
    single = single_switch(2, "127.0.0.1:1")
    assert (single.leaves, single.spines) == (single.switches, ())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("leaf2:3, spine2:2", "leaf2:3, spine9:2", "link leaf2:3 - spine9:2: switch 'spine9' is not listed"),
        ("leaf2:3, spine2:2", "leaf2:3, leaf2:4", "link leaf2:3 - leaf2:4 joins a switch with itself"),
        ("leaf2:3, spine2:2", "leaf2:3, spine1:3", "leaf2 and spine1 have 2 links: one is supported"),
        ("leaf2:3, spine2:2", "leaf2:3, leaf1:4", "joins two leaves (both have hosts)"),
        ("leaf2:3, spine2:2", "spine1:3, spine2:2", "joins two spines (neither has hosts)"),
        ("leaf2:3, spine2:2", "leaf2:3", "links[3].ends[1]: is missing"),
        ("leaf2:3, spine2:2", "leaf2, spine2:2", "'leaf2' is not the end of a link: write SWITCH:PORT"),
        (
            "  - {ends: [leaf2:3, spine2:2]}\n",
            "",
            "leaf2 has no link to spine2: every leaf needs one to every",
        ),
        (
            "leaf2:3, spine2:2",
            "leaf2:1, spine2:2",
            "port leaf2 / 1 is used 2 times (by host h2, link leaf2:1",
        ),
        ("ip: 10.1.2.254", "ip: 10.1.1.254", "aggregation IP address 10.1.1.254 is used 2 times"),
        (
            "ip: 10.0.2.1}",
            "ip: 10.0.1.1}",
            "host h2 (10.0.1.1) is outside 10.0.2.0/24, the subnet of its rack",
        ),
        (
            '"127.0.0.1:2", aggregation',
            '"127.0.0.1:2", subnet: 10.0.0.0/16, aggregation',
            "racks leaf1 (10.0.1.0/24) and leaf2 (10.0.0.0/16) overlap: each needs its own subnet",
        ),
        ("links:", "qos: {spray: sideways}\nlinks:", "qos.spray: 'sideways' is not one of hash, round_robin"),
        ("links:", "qos: {classes: {64: {}}}\nlinks:", "qos.classes"),
        (
            "links:",
            "qos: {losses: [{switch: leaf9, port: 1, probability: 0.1}]}\nlinks:",
            "qos.losses: switch 'leaf9' is not listed",
        ),
        (
            "links:",
            "qos: {losses: [{switch: leaf1, port: 1, probability: 1.1}]}\nlinks:",
            "it must be at most 1",
        ),
        (
            "links:",
            "qos: {queues: [{switch: leaf1, port: 1, depth: 9}]}\nlinks:",
            "switch leaf1 has no thrift address: rates and depths of a soft switch are options of its ports",
        ),
    ],
)
def test_a_mistake_in_two_tiers_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in TWO_TIERS
    head, _, tail = TWO_TIERS.rpartition(old)
    with pytest.raises(TopologyError) as caught:
        _load(tmp_path, head + new + tail)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((0, 1, 1), "1 to 255 racks, not 0"),
        ((1, 17, 1), "1 to 16 spines, not 17"),
        ((1, 1, 254), "a rack has 1 to 253 hosts, not 254"),
    ],
)
def test_what_cannot_be_numbered_is_refused(counts: tuple[int, int, int], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        leaf_spine(*counts)


# ---- three tiers


def test_three_tiers_are_pods_joined_by_cores(tmp_path: Path) -> None:
    made = leaf_spine_core(2, 2, 2, 3, 1)
    assert _load(tmp_path, made.model_dump_json(), "topology.json") == made
    tiers = [[switch.name for switch in made.tier(number)] for number in range(3)]
    assert tiers == [
        ["leaf1", "leaf2", "leaf3", "leaf4"],
        ["spine1", "spine2", "spine3", "spine4"],
        ["core1", "core2", "core3"],
    ]
    assert made.pods() == (
        Pod(("leaf1", "leaf2"), ("spine1", "spine2")),
        Pod(("leaf3", "leaf4"), ("spine3", "spine4")),
    )
    assert [(port, other.name) for port, other in made.neighbours("spine3")] == [
        (1, "leaf3"),
        (2, "leaf4"),
        (3, "core1"),
        (4, "core2"),
        (5, "core3"),
    ]
    assert [other.name for _port, other in made.neighbours("core2")] == tiers[1]


@pytest.mark.parametrize(
    ("drop", "add", "says"),
    [
        ("spine4:5 - core3:4", None, "spine4 has no link to core3: every spine needs one to every core"),
        ("leaf4:3 - spine4:2", None, "leaf4 has no link to spine4: every leaf needs one to every spine of"),
        (None, ("spine1:9", "spine2:9"), "joins two spines (neither has hosts)"),
        (None, ("core1:9", "core2:9"), "joins two cores (neither has hosts)"),
        (None, ("leaf1:9", "leaf3:9"), "joins two leaves (both have hosts)"),
        (
            None,
            ("leaf1:9", "spine3:9"),
            "leaf2 has no link to spine3: every leaf needs one to every spine of",
        ),
    ],
)
def test_a_mistake_in_three_tiers_is_named(
    tmp_path: Path, drop: str | None, add: tuple[str, str] | None, says: str
) -> None:
    made = leaf_spine_core(2, 2, 2, 3, 1).model_dump(mode="json")
    made["links"] = [link for link in made["links"] if " - ".join(link["ends"]) != drop]
    made["links"] += [{"ends": add}] if add else []
    with pytest.raises(TopologyError) as caught:
        _load(tmp_path, json.dumps(made), "topology.json")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((0, 1, 1, 1, 1), "1 to 255 racks, not 0"),
        ((9, 32, 1, 1, 1), "1 to 255 racks, not 288"),
        ((2, 1, 17, 1, 1), "a pod has 1 to 16 spines, not 17"),
        ((2, 1, 1, 17, 1), "1 to 16 cores, not 17"),
    ],
)
def test_what_cannot_be_numbered_in_three_tiers_is_refused(
    counts: tuple[int, int, int, int, int], says: str
) -> None:
    with pytest.raises(TopologyError, match=says):
        leaf_spine_core(*counts)


SAVED = Path(__file__).parent / "saved"


@pytest.mark.parametrize("name", ["one-switch.yaml", "tls.yaml", "local-cluster.json"])
def test_files_from_before_there_was_one_package_are_read_as_they_were(name: str) -> None:
    """``read.json`` is what was made of each then."""
    expected = json.loads((SAVED / "read.json").read_text())[Path(name).stem]
    assert json.loads(load_topology(SAVED / name).model_dump_json()) == expected


def test_a_file_that_trims_the_layer_classes_of_wire_version_2_is_refused_in_words() -> None:
    with pytest.raises(
        TopologyError, match=r"DSCP 48 has trim_at, .*CS6 was a layer class of wire version 2"
    ):
        load_topology(SAVED / "racks-with-classes.yaml")


def test_tls_files_are_relative_to_the_topology_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "tls.yaml"
    path.write_bytes((SAVED / "tls.yaml").read_bytes())
    names = {"ca": "ca.pem", "cert": "controller.pem", "key": "controller.key"}
    for name in names.values():
        (tmp_path / "site" / name).touch()
    for folder, given in ((tmp_path, Path("site/tls.yaml")), (Path("/"), path)):
        monkeypatch.chdir(folder)
        tls = with_files(load_topology(given), given).switch("s1").tls
        assert tls is not None
        assert {name: getattr(tls, name) for name in names} == {
            name: given.parent / file for name, file in names.items()
        }


def test_every_missing_tls_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tls.yaml"
    path.write_bytes((SAVED / "tls.yaml").read_bytes())
    (tmp_path / "ca.pem").touch()
    with pytest.raises(TopologyError) as caught:
        with_files(load_topology(path), path)
    assert f"switch s1, cert: {tmp_path}/controller.pem: No such file" in str(caught.value)
    assert f"switch s1, key: {tmp_path}/controller.key: No such file" in str(caught.value)
    assert "ca.pem" not in str(caught.value)
