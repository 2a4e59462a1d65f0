# SPDX-License-Identifier: Apache-2.0
"""The run loop over shared-memory and queue ports, with a real program and real hosts."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from softp4.dataplane.ports import PortError, PortLoop
from softp4.dataplane.shm_directory import ShmDirectory
from softp4.native.ring import HOST, MAX_FRAME, ShmPort
from softp4.program.loader import Program, load_program
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.harness.confined import run_on_small_disk
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT

MACS = {port: 0x020000000000 + port for port in (1, 2, 3)}
RING = 512  # frames that a shared-memory port holds in each direction, at least; many more short ones


@pytest.fixture(scope="module")
def program() -> Program:
    return load_program(CONTROL)


@pytest.fixture
def loop(program: Program) -> Iterator[PortLoop]:
    """Yield a running loop, without ports, over a switch that sends each MAC of ``MACS`` to its port."""
    with Switch(program, cpu_port=510) as switch, PortLoop() as made:
        for port, mac in MACS.items():
            send_to(switch, mac, port)
        made.set_switch(switch)
        made.start()
        yield made


def send_to(switch: Switch, mac: int, port: int) -> None:
    switch.table("ControlIngress.stations").insert(Entry((Exact(mac),), "ControlIngress.forward", (port,)))


def frame(to: int, payload: bytes = b"") -> bytes:
    return MACS[to].to_bytes(6, "big") + bytes(6) + b"\x12\x34" + payload.ljust(46, b"\0")


def receive(port: ShmPort) -> bytes:
    found = port.recv(TIMEOUT)
    assert found is not None, "no frame"
    return found


def test_two_hosts_talk_over_shared_memory(loop: PortLoop, tmp_path: Path) -> None:
    for number in (1, 2):
        loop.add_shm(number, tmp_path)
    with ShmPort(tmp_path, 1) as one, ShmPort(tmp_path, 2) as two:
        for turn in range(100):  # each frame finds the switch asleep
            one.send(frame(2, b"%d" % turn))
            assert receive(two) == frame(2, b"%d" % turn)
            two.send(frame(1))
            assert receive(one) == frame(1)
    assert loop.statistics(1).rx_packets == loop.statistics(2).tx_packets == 100
    assert loop.statistics(1).rx_bytes == 100 * 60


def test_bursts_arrive_whole_and_in_order(loop: PortLoop, tmp_path: Path) -> None:
    for number in (1, 2):
        loop.add_shm(number, tmp_path)
    with ShmPort(tmp_path, 1) as one, ShmPort(tmp_path, 2) as two:
        for start in range(0, 5000, 500):
            for index in range(start, start + 500):
                assert one.send(frame(2, b"%d" % index))
            for index in range(start, start + 500):
                assert receive(two) == frame(2, b"%d" % index)


def test_shared_memory_and_other_ports_mix(loop: PortLoop, tmp_path: Path) -> None:
    loop.add_shm(1, tmp_path)
    loop.add_queue(2, "two")
    with ShmPort(tmp_path, 1) as one:
        for turn in range(50):
            one.send(frame(2, b"%d" % turn))
            assert loop.receive(2, TIMEOUT) == frame(2, b"%d" % turn)
            loop.inject(2, frame(1))
            assert receive(one) == frame(1)


def test_longest_frame_passes_and_a_longer_one_is_refused(loop: PortLoop) -> None:
    for number in (1, 2):
        loop.add_queue(number, "queue")
    longest = frame(2).ljust(MAX_FRAME, b"\7")
    loop.inject(1, longest)
    assert loop.receive(2, TIMEOUT) == longest
    with pytest.raises(PortError, match="a frame of 4217 bytes is longer than 4216"):
        loop.inject(1, longest + b"\7")


def test_a_host_that_does_not_read_loses_frames_and_nobody_else_does(loop: PortLoop, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        loop.add_shm(number, tmp_path)
    with ShmPort(tmp_path, 1) as one, ShmPort(tmp_path, 3) as three:
        for index in range(10_000):
            while not one.send(frame(2)):
                pass
            if index % 100 == 0:
                one.send(frame(3))
                assert receive(three) == frame(3)
        one.send(frame(3))
        receive(three)
    statistics = loop.statistics(2)
    assert statistics.tx_packets > RING
    assert statistics.tx_packets + statistics.tx_drops == 10_000
    assert statistics.tx_drops > 0


def test_a_port_that_is_down_drops_both_ways(loop: PortLoop) -> None:
    for number in (1, 2, 3):
        loop.add_queue(number, "queue")
    loop.set_up(2, False)
    loop.inject(1, frame(2))
    loop.inject(2, frame(3))
    loop.inject(1, frame(3))
    assert loop.receive(3, TIMEOUT) == frame(3)
    loop.set_up(2, True)
    loop.inject(1, frame(2, b"up"))
    assert loop.receive(2, TIMEOUT) == frame(2, b"up")
    statistics = loop.statistics(2)
    assert (statistics.tx_drops, statistics.tx_packets) == (1, 1)
    assert (statistics.rx_drops, statistics.rx_packets) == (1, 1)


def test_ports_come_and_go_under_traffic(loop: PortLoop, tmp_path: Path) -> None:
    for number in (1, 2):
        loop.add_shm(number, tmp_path)
    stop = threading.Event()

    def traffic() -> None:
        with ShmPort(tmp_path, 1) as one:
            while not stop.is_set():
                one.send(frame(2))
                one.send(frame(3))

    sender = threading.Thread(target=traffic)
    sender.start()
    try:
        with ShmPort(tmp_path, 2) as two:
            for _ in range(20):
                loop.add_shm(3, tmp_path)
                with ShmPort(tmp_path, 3) as three:
                    assert receive(three) == frame(3)
                loop.remove(3)
                assert not (tmp_path / "port-3").exists()
                assert receive(two) == frame(2)
            while loop.unknown_port_drops() == 0:
                pass
    finally:
        stop.set()
        sender.join()
    assert list(loop.ports()) == [1, 2]


def test_without_a_switch_frames_are_dropped_and_counted() -> None:
    with PortLoop() as loop:
        loop.add_queue(1, "one")
        loop.start()
        loop.inject(1, frame(2))
        assert loop.drain(1, TIMEOUT)
        assert loop.statistics(1).rx_drops == 1


def test_another_switch_takes_over_between_frames(loop: PortLoop, program: Program) -> None:
    for number in (1, 2, 3):
        loop.add_queue(number, "queue")
    loop.inject(1, frame(2))
    assert loop.receive(2, TIMEOUT) == frame(2)
    with Switch(program) as other:
        send_to(other, MACS[2], 3)
        loop.set_switch(other)
        loop.inject(1, frame(2))
        assert loop.receive(3, TIMEOUT) == frame(2)
        loop.set_switch(None)


def test_an_entry_changed_at_full_traffic_is_never_seen_half_changed(
    program: Program, tmp_path: Path
) -> None:
    versions = [(0x0A0A0A0A0A0A, 0x0A0A, 2), (0x0B0B0B0B0B0B, 0x0B0B, 3)]
    table, mac = "ControlIngress.stations", MACS[2]

    def entry(version: int) -> Entry:
        return Entry((Exact(mac),), "ControlIngress.stamp", versions[version])

    with Switch(program) as switch, PortLoop() as loop:
        for number in (1, 2, 3):
            loop.add_shm(number, tmp_path)
        switch.table(table).insert(entry(0))
        loop.set_switch(switch)
        loop.start()
        enough = threading.Event()

        def change() -> None:
            while not enough.is_set():
                for version in (1, 0):
                    switch.table(table).modify(entry(version))

        writer = threading.Thread(target=change)
        with ShmPort(tmp_path, 1) as one, ShmPort(tmp_path, 2) as two, ShmPort(tmp_path, 3) as three:
            writer.start()
            sent, seen = 0, {2: 0, 3: 0}
            while sent > sum(seen.values()) or not enough.is_set():
                while not enough.is_set() and sent - sum(seen.values()) < RING // 2:
                    sent += one.send(frame(2))
                for port, host in ((2, two), (3, three)):
                    while (found := host.recv(0)) is not None:
                        src, kind, _ = versions[port - 2]
                        assert found[6:14] == src.to_bytes(6, "big") + kind.to_bytes(2, "big")
                        seen[port] += 1
                if min(seen.values()) > 2000:
                    enough.set()
            writer.join()


class _Operations(ctypes.Structure):
    """``sw_ops`` of runtime/switch.h, as far as needed here."""

    _fields_ = (
        ("process", ctypes.c_void_p),
        ("lock", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("unlock", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


def test_no_frame_is_run_while_the_control_side_holds_the_switch(program: Program, tmp_path: Path) -> None:
    with Switch(program) as switch, PortLoop() as loop:
        send_to(switch, MACS[2], 2)
        for number in (1, 2):
            loop.add_shm(number, tmp_path)
        loop.set_switch(switch)
        loop.start()
        operations = ctypes.POINTER(_Operations).from_address(switch.handle).contents
        with ShmPort(tmp_path, 1) as one, ShmPort(tmp_path, 2) as two:
            operations.lock(switch.handle)
            one.send(frame(2))
            early = two.recv(0.1)
            operations.unlock(switch.handle)
            assert early is None
            assert receive(two) == frame(2)


def test_a_host_gone_wrong_hurts_only_itself(loop: PortLoop, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        loop.add_shm(number, tmp_path)
    with ShmPort(tmp_path, 1) as one, ShmPort(tmp_path, 2) as two:
        with (tmp_path / "port-3").open("r+b") as raw:
            size = raw.seek(0, 2)
            raw.seek(12)  # behind what a host looks at first: magic, version, size
            raw.write(b"\xff" * (size - 12))
        subprocess.run([sys.executable, "-c", _RING, str(tmp_path), "3"], check=True)
        one.send(frame(2))
        assert receive(two) == frame(2)


_RING = """
import sys; from pathlib import Path; from softp4.native.ring import ShmPort
with ShmPort(Path(sys.argv[1]), int(sys.argv[2])) as port:
    port.send(bytes(60))
"""


def test_errors_name_the_port_and_the_reason(loop: PortLoop, tmp_path: Path) -> None:
    loop.add_shm(1, tmp_path)
    (tmp_path / "other").mkdir()
    cases = [
        (lambda: loop.add_queue(1, "x"), f"port 1, x: port 1 is already shm in {tmp_path}"),
        (lambda: loop.add_queue(511, "x"), "port 511: port numbers are 0 to 510"),
        (
            lambda: loop.add_shm(2, tmp_path / "other"),
            "all shared-memory ports of a switch are in one directory",
        ),
        (lambda: loop.add_interface(2, "nosuchif0"), "there is no such network interface"),
        (lambda: loop.remove(9), "there is no such port: 9"),
        (lambda: loop.set_up(9, True), "there is no such port: 9"),
        (lambda: loop.statistics(9), "there is no such port: 9"),
        (lambda: loop.receive(1), "there is no such port: 1"),
    ]
    for call, message in cases:
        with pytest.raises(PortError) as error:
            call()
        assert message in str(error.value)


def test_nothing_is_left_behind(program: Program, tmp_path: Path) -> None:
    with Switch(program) as switch, PortLoop() as loop:
        loop.set_switch(switch)
        loop.add_shm(1, tmp_path)
        loop.start()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bell", "port-1"]
    assert list(tmp_path.iterdir()) == []
    loop.close()
    with pytest.raises(PortError, match="closed"):
        loop.statistics(1)


def test_a_directory_serves_one_switch_and_outlives_a_killed_one(tmp_path: Path) -> None:
    place = tmp_path / "ports"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(place)], check=False)
    assert killed.returncode == 9
    assert {path.name for path in place.iterdir()} == {"bell", "lock", "port-1"}
    mine = ShmDirectory(place)
    assert {path.name for path in place.iterdir()} == {"lock"}
    with pytest.raises(PortError, match="another switch serves it"):
        ShmDirectory(place)
    with PortLoop() as loop:
        loop.add_shm(1, place)
    mine.close()
    assert list(place.iterdir()) == []  # the directory was there before


_KILLED = """
import os, sys; from pathlib import Path
from softp4.dataplane.ports import PortLoop
from softp4.dataplane.shm_directory import ShmDirectory
place = Path(sys.argv[1]); held = ShmDirectory(place); loop = PortLoop(); loop.add_shm(1, place); os._exit(9)
"""


def test_a_directory_made_here_goes_again(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    ShmDirectory(place).close()
    assert not place.exists()
    with pytest.raises(PortError, match="/dev/null/x: Not a directory"):
        ShmDirectory(Path("/dev/null/x"))


def test_hosts_need_a_port(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ShmPort(tmp_path, 1, HOST)


@pytest.mark.root
@pytest.mark.parametrize(("mode", "owner"), [(0o755, 65534), (0o777, 65534), (0o777, 0), (0o1777, 0)])
def test_a_directory_that_another_user_may_write_to_is_not_served(
    tmp_path: Path, mode: int, owner: int
) -> None:
    place = tmp_path / "ports"
    place.mkdir()
    (place / "port-1").write_text("of nobody knows whom")
    place.chmod(mode)
    os.chown(place, owner, owner)
    words = "it belongs to user" if owner else "others than its owner may write to it"
    with pytest.raises(PortError, match=f"shared-memory directory {place}: {words}.*choose a folder"):
        ShmDirectory(place)
    assert {path.name for path in place.iterdir()} == {"port-1"}  # nothing was made or removed


@pytest.mark.root
def test_a_port_for_which_there_is_no_memory_says_what_it_needs(tmp_path: Path) -> None:
    code = """
import sys; from pathlib import Path
from softp4.dataplane.ports import PortError, PortLoop
with PortLoop() as loop:
    loop.add_shm(1, Path(sys.argv[1]))
    try:
        loop.add_shm(2, Path(sys.argv[1]))
    except PortError as error:
        print(error)
"""
    done = run_on_small_disk(tmp_path, 3 << 20, [sys.executable, "-c", code, tmp_path])
    needed = f"it needs 2.0 MiB of shared memory in {tmp_path}, where 1.0 MiB of 3.0 MiB are free"
    assert f"port 2, shm in {tmp_path}: {needed}" in done.stdout, done.stderr
    assert "--shm-size" in done.stdout
