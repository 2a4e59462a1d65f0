# SPDX-License-Identifier: Apache-2.0
"""A topology file is either right, or refused with every mistake named where it is."""

import json
from pathlib import Path

import pytest

from controller.topology import Topology, TopologyError, load_topology, single_switch

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
        ("port: 2", "port: 1", "switch port s1 / 1 is used 2 times (by h1, h2)"),
        ("name: h2", "name: h1", "host name h1 is used 2 times"),
        ("00:00:02", "00:00:01", "MAC address 02:00:00:00:00:01 is used 2 times (by h1, h2)"),
        ("ip: 10.0.0.2,", "ip: 10.0.0.1,", "IP address 10.0.0.1 is used 2 times"),
        ("h2, switch: s1", "h2, switch: s9", "host h2 is on switch 's9', which is not listed (known: s1)"),
        ("00:00:02", "00:00:fe", "host h2 has the aggregation address of switch s1"),
        ("port: 2", "port: 511", "hosts[1].port: Input should be less than 511"),
        ('"02:00:00:00:00:02"', '"01:00:5e:00:00:02"', "hosts[1].mac: 01:00:5e:00:00:02 is a group"),
        ('"02:00:00:00:00:02"', '"2:0:0:0:0:2"', "hosts[1].mac: '2:0:0:0:0:2' is not a MAC address"),
        ("ip: 10.0.0.2,", "ip: 10.0.0,", "hosts[1].ip: '10.0.0' is not an IPv4 address"),
        ("127.0.0.1:9559", "127.0.0.1", "switches[0].grpc: '127.0.0.1' is not a service address"),
        ("port: 2", "prot: 2", "hosts[1].prot: Extra inputs are not permitted"),
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
        ("hosts: []", "switches: Field required"),
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
