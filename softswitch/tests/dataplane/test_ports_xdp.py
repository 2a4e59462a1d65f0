# SPDX-License-Identifier: Apache-2.0
"""AF_XDP ports: what they do besides what every port on an interface does, and what is refused."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from softp4.dataplane.ports import PortError, PortLoop
from tests.dataplane.veths import Veths, forwarding, mac_bytes, made_veths
from tests.harness.confined import Capability, without
from tests.p4rt.p4rt_client import PATIENCE
from weir.netns import offloads_off

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab() -> Iterator[Veths]:
    with made_veths() as made:
        yield made


def _frame(length: int = 60) -> bytes:
    return (mac_bytes(2) + mac_bytes(1) + b"\x88\xb5").ljust(length, b"\x55")


def _has_xdp(lab: Veths, interface: str) -> bool:
    return lab.switch.links.find(interface).xdp


def test_kernel_udp_passes_once_the_hosts_compute_their_checksums(lab: Veths) -> None:
    for host in lab.hosts.values():
        host.call(lambda: offloads_off("eth0", ["tx"]))
    with forwarding(lab, "AF_XDP native"), lab.udp(1) as one, lab.udp(2) as two:
        for size in (0, 1, 999, 1472):
            payload = os.urandom(size)
            one.sendto(payload, ("10.0.0.2", 5000))
            assert two.recvfrom(2048) == (payload, ("10.0.0.1", 5000))


def test_frames_longer_than_the_switch_holds_are_counted(lab: Veths) -> None:
    """3900 bytes do not fit into a chunk of shared memory."""
    with forwarding(lab, "AF_XDP generic") as loop, lab.raw(1) as one, lab.raw(2) as two:
        for length in (3000, 3900, 60):
            one.send(_frame(length))
        assert two.recv(4096) == _frame(3000)
        assert two.recv(4096) == _frame()
        seen = loop.statistics(1)
    assert (seen.rx_packets, seen.rx_oversize, seen.rx_drops) == (2, 0, 1)


def test_what_the_interface_refuses_is_counted_as_not_sent(lab: Veths) -> None:
    """The other end is down: the kernel takes every frame, and drops it."""
    with forwarding(lab, "AF_XDP native") as loop, lab.raw(1) as one:
        lab.hosts[2].links.set("eth0", up=False)
        for length in range(60, 160):
            one.send(_frame(length))
        while (seen := loop.statistics(2)).tx_drops < 100:
            assert seen.tx_packets + seen.tx_drops <= 100
        lab.hosts[2].links.set("eth0", up=True)
        with lab.raw(2) as two:
            one.send(_frame())
            assert two.recv(2048) == _frame()
        seen = loop.statistics(2)
    assert (seen.tx_packets, seen.tx_bytes, seen.tx_drops) == (1, 60, 100)


def test_what_is_sent_to_an_interface_that_is_gone_is_counted(lab: Veths) -> None:
    with forwarding(lab, "AF_XDP native") as loop, lab.raw(1) as one, lab.raw(2) as two:
        loop.remove(2)
        with lab.vanishing("gone"):
            lab.attach(loop, "AF_XDP", 2, "gone")
        for _ in range(3000):  # more than the port has chunks
            one.send(_frame())
        while (seen := loop.statistics(2)).tx_drops < 3000 - loop.statistics(1).rx_drops:
            assert seen.tx_packets == 0
        loop.remove(2)
        lab.attach(loop, "AF_XDP", 2, "sw2")
        one.send(_frame(61))
        assert two.recv(2048) == _frame(61)


def test_a_port_can_be_removed_and_attached_again_at_once(lab: Veths) -> None:
    with forwarding(lab, "AF_XDP native") as loop, lab.raw(1) as one, lab.raw(2) as two:
        for _ in range(3):
            loop.remove(1)
            assert not _has_xdp(lab, "sw1")
            lab.attach(loop, "AF_XDP", 1, "sw1")
            assert _has_xdp(lab, "sw1")
            one.send(_frame())
            assert two.recv(2048) == _frame()


def test_a_killed_switch_leaves_nothing_on_the_interface(lab: Veths) -> None:
    code = (
        "from softp4.dataplane.ports import PortLoop; import time; "
        "loop = PortLoop(); loop.add_xdp(1, 'sw1'); "
        "print('ready', flush=True); time.sleep(600)"
    )
    command = [*lab.switch.prefix, sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert _has_xdp(lab, "sw1")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
    assert not _has_xdp(lab, "sw1")
    with forwarding(lab, "AF_XDP native"), lab.raw(1) as one, lab.raw(2) as two:
        one.send(_frame())
        assert two.recv(2048) == _frame()


def test_refusals_say_what_to_do(lab: Veths) -> None:
    lab.switch.links.add_veth("many", "many-peer", queues=2)
    with forwarding(lab, "AF_XDP native"), PortLoop() as loop:
        for interface, words in (
            ("nosuch", "there is no such network interface"),
            ("many", "the interface has several receive queues; leave it one"),
            ("sw1", "another program has the interface's XDP hook"),
        ):
            with pytest.raises(PortError, match=f"port 7, AF_XDP on '{interface}': {words}"):
                lab.attach(loop, "AF_XDP", 7, interface)
        assert loop.ports() == {}
    lab.switch.links.remove("many")


def test_without_the_right_to_bpf_the_error_says_so(lab: Veths) -> None:
    code = "from softp4.dataplane.ports import PortLoop\nPortLoop().add_xdp(1, 'sw1')"
    command = [*without(Capability.BPF, Capability.SYS_ADMIN), sys.executable, "-c", code]
    done = subprocess.run([*lab.switch.prefix, *command], capture_output=True, text=True, check=False)
    assert "not allowed: run as root, or give Python CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" in done.stderr


def test_a_loop_that_is_not_started_can_be_closed(lab: Veths) -> None:
    with PortLoop() as loop:
        lab.attach(loop, "AF_XDP", 1, "sw1")
