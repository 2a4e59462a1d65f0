# SPDX-License-Identifier: Apache-2.0
"""Namespaces and what joins them: real ones, of this machine's kernel."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.harness.confined import Capability, without
from weir.netns import Namespace, NetlinkError, TokenBucket, why_not
from weir.netns.lab import Lab, bridged_lab, cable_ends, lab
from weir.network import NetworkSpec, parse_shape
from weir.wire.definition import BEST_EFFORT_DSCP

TIMEOUT = 30.0
SOMEBODY = bytes.fromhex("02000000ff01")  # a MAC address
ALL_PROTOCOLS = 3  # ETH_P_ALL
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32  # of asm-generic/socket.h


@pytest.fixture
def two() -> Iterator[list[Namespace]]:
    with Namespace() as one, Namespace() as other:
        yield [one, other]


def _raw(interface: str) -> socket.socket:
    """Return a socket for the frames of an interface."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 24)  # not to wait for what is queued
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)  # nor to lose what comes before it is read
    made.bind((interface, ALL_PROTOCOLS))
    return made


def _arrived(receiver: socket.socket) -> Iterator[bytes]:
    """Yield the frames that have come in and were not read."""
    with contextlib.suppress(BlockingIOError):
        while True:
            yield receiver.recv(2000, socket.MSG_DONTWAIT)


def accepted(namespace: Namespace, interface: str, frames: int) -> int:
    """Return how many of this many frames of 1000 bytes an interface takes at once."""

    taken = 0
    with namespace.call(partial(_raw, interface)) as sender:
        for _ in range(frames):
            with contextlib.suppress(OSError):  # no buffer space
                sender.send(bytes(12) + b"\x88\xb5" + bytes(986))
                taken += 1
    return taken


@pytest.mark.root
class TestLinks:
    def test_an_interface_is_as_it_was_made(self, two: list[Namespace]) -> None:
        here, there = two
        here.links.add_veth("left", "right", there=there.file)
        here.links.set("left", mac="02:00:00:00:00:07", mtu=4000, up=True)
        there.links.set("right", up=False)
        found = here.links.find("left")
        assert (found.mac, found.mtu, found.up) == ("02:00:00:00:00:07", 4000, True)
        assert not there.links.find("right").up
        assert here.call(lambda: [name for _, name in socket.if_nameindex()]) == ["lo", "left"]

    def test_refusals_say_what_and_why(self, two: list[Namespace]) -> None:
        links = two[0].links
        links.add_veth("left", "right")
        with pytest.raises(NetlinkError, match="cannot add veth left - other: File exists"):
            links.add_veth("left", "other")
        with pytest.raises(NetlinkError, match="cannot find nosuch: No such device") as refused:
            links.find("nosuch")
        assert refused.value.errno == errno.ENODEV
        with pytest.raises(NetlinkError, match="cannot remove the token bucket of left"):
            links.unshape("left")

    def test_a_token_bucket_drops_what_its_queue_cannot_hold(self, two: list[Namespace]) -> None:
        here, there = two
        here.links.add_veth("left", "right", there=there.file)
        for links, name in ((here.links, "left"), (there.links, "right")):
            links.set(name, up=True)

        here.links.shape("left", TokenBucket(4000, burst=2000, latency_s=2))  # 1000 bytes may wait besides
        assert accepted(here, "left", 20) == 2 + 3
        assert here.links.shaped_bytes("left") == 2000
        here.links.unshape("left")
        assert accepted(here, "left", 20) == 20

    def test_neighbours_and_a_gateway_lead_packets_to_their_mac(self, two: list[Namespace]) -> None:
        here, there = two
        here.links.add_veth("left", "right", there=there.file)
        there.links.set("right", mac="02:00:00:00:00:02", up=True)
        here.links.set("left", up=True)
        here.links.add_address("left", "10.1.0.1/24")
        here.links.set_neighbour("left", "10.1.0.254", "02:00:00:00:00:02")
        here.links.set_gateway("left", "10.1.0.254")
        there.links.add_address("right", "10.2.0.2/24")
        there.links.add_address("lo", "10.3.0.3/32")

        def bound(address: str) -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((address, 5000))
            made.settimeout(TIMEOUT)
            return made

        with (
            here.call(partial(bound, "10.1.0.1")) as sender,
            there.call(partial(bound, "10.3.0.3")) as receiver,
        ):
            sender.sendto(b"by the gateway", ("10.3.0.3", 5000))
            assert receiver.recv(100) == b"by the gateway"


@pytest.mark.root
class TestNamespace:
    def test_a_command_runs_inside(self, two: list[Namespace]) -> None:
        two[0].links.add_bridge("mark")
        code = "import socket; print([name for _, name in socket.if_nameindex()])"
        command = [*two[0].prefix, sys.executable, "-c", code]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said == "['lo', 'mark']\n"

    def test_a_command_that_cannot_enter_says_so(self, two: list[Namespace]) -> None:
        gone = [word.replace(two[0].path, "/proc/self/fd/999") for word in two[0].prefix]
        done = subprocess.run([*gone, "true"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "true cannot run in namespaces of its own: [Errno 2] No such file or directory" in done.stderr

    def test_it_ends_with_the_process_that_made_it_however_that_ends(self, two: list[Namespace]) -> None:
        """A link from ours into one of a killed process goes away with that one."""
        code = (
            "from weir.netns import Namespace; import sys, time, os\n"
            "made = Namespace(); ours = os.open(sys.argv[1], os.O_RDONLY)\n"
            "made.links.add_veth('inner', 'outer', there=ours); print('ready', flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", code, two[0].path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                assert two[0].links.find("outer")
            finally:
                process.kill()
        deadline = time.monotonic() + TIMEOUT
        with pytest.raises(NetlinkError, match="cannot find outer"):
            while time.monotonic() < deadline:
                two[0].links.find("outer")
                time.sleep(0.05)


GAINING = """
import os, sys
from weir.netns import gain_root
reason = gain_root()
from weir.netns.lab import bridged_lab
if reason is None:
    with bridged_lab(2, rate="100mbit") as made:
        print(made.namespaces[0].links.find("eth0").mac, *sys.argv[1:])
else:
    print(reason)
"""


class TestGainRoot:
    def run(self, *prefix: str) -> str:
        command = [*prefix, sys.executable, "-c", GAINING, "kept", "arguments"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def test_an_unprivileged_user_gets_a_user_namespace(self) -> None:
        here = Path("/proc/self/ns/user").readlink()
        said = self.run(*without(Capability.SYS_ADMIN, Capability.NET_ADMIN))
        if "user namespaces are not available" in said:
            pytest.skip(f"needs unprivileged user namespaces: {said}")
        assert said == "02:00:00:00:00:01 kept arguments\n"
        assert Path("/proc/self/ns/user").readlink() == here

    def test_a_user_namespace_has_no_right_to_make_bridges_lose_packets(self) -> None:
        code = GAINING.replace('rate="100mbit"', "network=NetworkSpec(loss=0.1)")
        code = code.replace("import os, sys", "import os, sys\nfrom weir.network import NetworkSpec")
        command = [*without(Capability.SYS_ADMIN, Capability.NET_ADMIN, Capability.BPF)]
        done = subprocess.run(
            [*command, sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        if "user namespaces are not available" in done.stdout:
            pytest.skip(f"needs unprivileged user namespaces: {done.stdout}")
        assert "NamespaceError: a bridge whose links lose packets: [Errno 1] bpf: " in done.stderr

    def test_without_either_it_says_why(self) -> None:
        """A program that gained root once already does not try again."""
        environment = {**os.environ, "WEIR_USER_NAMESPACE": "1"}
        command = [*without(Capability.SYS_ADMIN), sys.executable, "-c", GAINING]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.startswith("network namespaces need root ([Errno 1] ")

    @pytest.mark.root
    def test_root_needs_nothing(self) -> None:
        assert why_not() is None
        assert self.run() == "02:00:00:00:00:01 kept arguments\n"


@pytest.mark.root
def test_hosts_of_a_bridged_lab_reach_one_another_over_tcp() -> None:
    with bridged_lab(3, rate="1gbit") as made, bridged_lab(2) as other:
        assert other.interfaces == made.interfaces[:2]  # side by side, with the same names
        sent = os.urandom(1 << 20)
        assert _through(made, sent) == sent


@pytest.mark.root
def test_a_bridge_beside_the_switch_has_the_same_token_buckets() -> None:
    """Both ends of every link take what a burst and a queue hold, whichever device forwards."""
    with lab(2, rate="8kbit", bridged=True) as made:
        ends = [(made.switch, name) for port in made.interfaces for name in (port, f"bridge-{port}")]
        ends += [(host, name) for host in made.namespaces for name in ("eth0", "eth1")]
        taken = [accepted(namespace, name, 400) for namespace, name in ends]
        assert 96 <= min(taken) <= max(taken) < 400
        assert max(taken) - min(taken) <= 3  # of 1000 bytes: what the buckets get in as many seconds


@pytest.mark.root
def test_cables_between_racks_have_the_token_buckets_of_hosts_links() -> None:
    with lab(2, rate="8kbit", network=NetworkSpec(parse_shape("leaf-spine-2x2"))) as made:
        ends = [end for cable in made.plan.cables for end in cable_ends(cable)]
        assert len(ends) == 2 * 4
        taken = [accepted(made.switch, name, 400) for name in (*made.interfaces, *ends)]
        assert 96 <= min(taken) <= max(taken) < 400
        assert max(taken) - min(taken) <= 3


@pytest.mark.root
@pytest.mark.parametrize("make", [lab, bridged_lab])
def test_hosts_may_send_at_another_rate_than_links(make: Callable[..., AbstractContextManager[Lab]]) -> None:
    """A bucket's queue holds 50 ms of its rate, so a faster one takes more at once."""
    with make(2, network=NetworkSpec(rate_bps=8_000_000, up_bps=8_000)) as made:
        assert all(96 <= accepted(host, "eth0", 400) < 215 for host in made.namespaces)
    with make(2, network=NetworkSpec(rate_bps=8_000, up_bps=8_000_000)) as made:
        assert all(230 <= accepted(host, "eth0", 400) < 400 for host in made.namespaces)


@pytest.mark.root
def test_the_least_timeout_of_tcp_is_that_of_the_labs_hosts_alone() -> None:
    setting = Path("/proc/sys/net/ipv4/tcp_rto_min_us")
    before = setting.read_text()
    with bridged_lab(2) as made:
        made.tcp_timeout(0.05)
        assert [host.call(setting.read_text).strip() for host in made.namespaces] == ["50000"] * 2
    assert setting.read_text() == before


@pytest.mark.root
class TestBridgedRacks:
    """The kernel's bridges do to packets what a network of soft switches is told to do."""

    RACKS = parse_shape("leaf-spine-2x1")

    def test_racks_reach_one_another(self) -> None:
        with bridged_lab(3, network=NetworkSpec(self.RACKS, rate_bps=10**9)) as made:
            assert {host.switch for host in made.hosts[::2]} == {"leaf1", "leaf2"}
            sent = os.urandom(1 << 20)
            assert _through(made, sent) == sent

    def test_each_link_loses_its_share_of_the_packets(self) -> None:
        frames, loss, kind = 4000, 0.5, b"\x88\xb5"
        with bridged_lab(2, network=NetworkSpec(loss=loss)) as made:
            other = bytes.fromhex(made.hosts[1].mac.replace(":", ""))
            before = made.switch.links.find(made.interfaces[1]).sent
            with made.namespaces[0].call(partial(_raw, "eth0")) as sender:
                for _ in range(frames):
                    sender.send(other + SOMEBODY + kind + bytes(100))
                expected = frames * (1 - loss) ** 2  # from host to bridge, from bridge to host
                deviation = (expected * (1 - (1 - loss) ** 2)) ** 0.5
                end = time.monotonic() + TIMEOUT
                while True:  # on a busy machine the last ones are still under way
                    over = made.switch.links.find(made.interfaces[1]).sent - before
                    if abs(over - expected) < 6 * deviation or time.monotonic() > end:
                        break
                    time.sleep(0.01)
                # The bridge's own IGMP reports come, too.
                back = [frame for frame in _arrived(sender) if frame[12:14] == kind]
        assert len(back) == 0
        assert abs(over - expected) < 6 * deviation

    @pytest.mark.parametrize("dscp", [BEST_EFFORT_DSCP, 34])
    def test_tcp_passes_what_else_waits_for_a_link_unless_that_has_a_class_of_weirs(self, dscp: int) -> None:
        """Two hosts fill the link between the racks; a third one's segment leaves before the last, or not."""
        with bridged_lab(6, network=NetworkSpec(self.RACKS, rate_bps=100_000, dscp=dscp)) as made:
            to = bytes.fromhex(made.hosts[5].mac.replace(":", ""))

            def frame(protocol: int) -> bytes:
                return to + SOMEBODY + b"\x08\x00" + bytes(9) + bytes([protocol]) + bytes(976)

            with made.namespaces[5].call(partial(_raw, "eth0")) as receiver:
                receiver.settimeout(TIMEOUT)
                for host, protocol, count in (
                    (0, socket.IPPROTO_UDP, 90),  # a full bucket lets through 98, or fewer after a report
                    (1, socket.IPPROTO_UDP, 48),  # most of these wait
                    (2, socket.IPPROTO_TCP, 1),
                ):
                    with made.namespaces[host].call(partial(_raw, "eth0")) as sender:
                        for _ in range(count):
                            sender.send(frame(protocol))

                def following() -> int:
                    """Return the protocol of the next frame of these; the kernels' own reports come, too."""
                    while (came := receiver.recv(2000))[6:12] != SOMEBODY:
                        pass
                    return came[23]

                before = 0
                while following() != socket.IPPROTO_TCP:
                    before += 1
                assert (before == 138) is (dscp != BEST_EFFORT_DSCP)
                if dscp == BEST_EFFORT_DSCP:
                    assert following() == socket.IPPROTO_UDP


def _through(made: Lab, data: bytes) -> bytes:
    """Return what the third host receives of what the first one sends."""
    first, third = made.hosts[0], made.hosts[2]
    with made.namespaces[2].call(lambda: socket.create_server((third.ip, 5000))) as server:
        client = made.namespaces[0].call(lambda: socket.create_connection((third.ip, 5000), TIMEOUT))
        connection, (address, _) = server.accept()
        with connection, client:
            assert address == first.ip
            connection.settimeout(TIMEOUT)
            received = bytearray()
            for start in range(0, len(data), 1 << 14):
                client.sendall(data[start : start + (1 << 14)])
                while len(received) < start + (1 << 14):
                    received += connection.recv(1 << 16)
    return bytes(received)
