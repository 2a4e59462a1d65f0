# SPDX-License-Identifier: Apache-2.0
"""Interfaces that lead to one network: refused as two ports of a switch, by whatever names they come."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from softp4.dataplane.interfaces import Interface, interfaces, shared
from softp4.dataplane.ports import PortError, PortLoop
from tests.harness.netns import Namespace

KNOWN = {
    number: Interface(number, name, kind, lower, master)
    for number, (name, kind, lower, master) in enumerate(
        [
            ("eth0", "", 0, 0),  # 1
            ("eth0.10", "vlan", 1, 0),
            ("eth0.20", "vlan", 1, 0),
            ("eth0.10.5", "vlan", 2, 0),
            ("mac1", "macvlan", 1, 0),  # 5
            ("mac2", "macvtap", 1, 0),
            ("br0", "bridge", 0, 0),
            ("veth1", "veth", 9, 7),
            ("veth2", "veth", 8, 7),
            ("bond0", "bond", 0, 0),  # 10
            ("eth1", "", 0, 10),
            ("bond0.3", "vlan", 10, 0),
            ("vrf0", "vrf", 0, 0),
            ("eth2", "", 0, 13),
            ("eth3", "", 0, 13),  # 15
            ("vx1", "vxlan", 1, 0),
            ("vx2", "vxlan", 1, 0),
            ("apart", "macvlan", 0, 0),
            ("apart2", "macvlan", 0, 0),
            ("veth3", "veth", 21, 0),  # 20
            ("veth4", "veth", 20, 0),
        ],
        1,
    )
}
NUMBERS = {each.name: number for number, each in KNOWN.items()}


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("eth0", "eth0", "it is the same interface"),
        ("eth0", "eth0.10", "eth0.10 sends and receives by eth0"),
        ("eth0", "eth0.10.5", "eth0.10.5 sends and receives by eth0"),
        ("eth0.10", "eth0.20", None),  # two networks, told apart by their tags
        ("eth0.10", "mac1", None),
        ("eth0", "mac1", "mac1 sends and receives by eth0"),
        ("mac1", "mac2", "both send and receive by eth0"),
        ("apart", "apart2", None),  # on cards that are in other namespaces
        ("br0", "veth1", "br0 sends and receives by veth1"),
        ("veth1", "veth2", "both are members of bridge br0"),
        ("bond0", "eth1", "bond0 sends and receives by eth1"),
        ("bond0.3", "eth1", "bond0.3 sends and receives by eth1"),
        ("eth2", "eth3", None),  # a VRF joins no networks
        ("eth0", "eth1", None),
        ("vx1", "vx2", None),  # tunnels by one card
        ("vx1", "eth0", None),
        ("veth3", "veth4", None),  # a cable between two ports
    ],
)
def test_what_two_interfaces_share(one: str, other: str, words: str | None) -> None:
    assert shared(NUMBERS[one], NUMBERS[other], KNOWN) == words
    assert shared(NUMBERS[other], NUMBERS[one], KNOWN) == words


def test_interfaces_that_are_gone_share_nothing() -> None:
    assert shared(1, 100, KNOWN) is None
    assert shared(100, 101, KNOWN) is None


def test_a_circle_of_interfaces_ends() -> None:
    """The kernel refuses it, but interfaces change while they are listed."""
    circle = {1: Interface(1, "a", "vlan", 2, 0), 2: Interface(2, "b", "vlan", 1, 0)}
    assert shared(1, 2, circle) is not None


@pytest.fixture(scope="module")
def machine() -> Iterator[Namespace]:
    """Yield a machine with cards nic0 and nic1, alias spare, and with what is stacked on nic0."""
    with Namespace() as made:
        for number in (0, 1):
            made.add_veth(f"nic{number}", f"far{number}")
        made.ip("link", "property", "add", "dev", "nic1", "altname", "spare")
        made.ip("link", "add", "link", "nic0", "name", "mac0", "type", "macvlan", "mode", "bridge")
        made.ip("link", "add", "br0", "type", "bridge")
        made.ip("link", "set", "far0", "master", "br0")
        made.ip("address", "add", "10.0.0.100/24", "dev", "nic1")
        for number in (1, 2):
            tunnel = ["type", "vxlan", "id", str(number), "dstport", "4789", "remote", f"10.0.0.{number}"]
            made.ip("link", "add", f"vx{number}", *tunnel)
        yield made


@pytest.mark.root
def test_the_kernel_lists_interfaces(machine: Namespace) -> None:
    found = machine.call(interfaces)
    by_name = {each.name: each for each in found.values()}
    assert found[by_name["mac0"].lower].name == "nic0"
    assert found[by_name["far0"].master].name == "br0"
    assert {each.kind for each in found.values()} == {"", "veth", "macvlan", "bridge", "vxlan"}
    numbers = machine.call(lambda: {socket.if_nametoindex(name): name for name in by_name})
    assert {number: each.name for number, each in found.items()} == numbers


@pytest.mark.root
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("nic0", "nic0"),
        ("nic1", "spare"),
        ("spare", "nic1"),
        ("nic0", "mac0"),
        ("mac0", "nic0"),
        ("br0", "far0"),
    ],
)
def test_one_network_is_one_port(machine: Namespace, first: str, second: str) -> None:
    def attach() -> None:
        with PortLoop() as loop:
            loop.add_interface(1, first)
            with pytest.raises(PortError, match=r"port 2, .*: port 1 is .*tunnel") as caught:
                loop.add_interface(2, second)
            assert list(loop.ports()) == [1]
            assert "a tunnel" in str(caught.value)
            loop.remove(1)
            loop.add_interface(2, second)  # which is free again

    machine.call(attach)


@pytest.mark.root
def test_tunnels_by_one_card_are_ports_of_their_own(machine: Namespace) -> None:
    def attach() -> None:
        with PortLoop() as loop:
            for number, name in enumerate(("vx1", "vx2", "nic0"), 1):
                loop.add_interface(number, name)

    machine.call(attach)


@pytest.mark.root
@pytest.mark.parametrize(
    "command",
    [
        ["softp4", "run", "--grpc", "127.0.0.1:0", "--no-control", "--port", "1=nic1", "--port", "2=spare"],
        ["softp4.simple_switch", "--no-p4", "-i", "1@nic1", "-i", "2@spare"],
    ],
    ids=["softp4 run", "softp4"],
)
def test_a_switch_does_not_start_with_one_card_twice(machine: Namespace, command: list[str]) -> None:
    done = subprocess.run(
        [*machine.prefix, sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "port 1 is interface 'nic1', and it is the same interface" in " ".join(done.stderr.split())
