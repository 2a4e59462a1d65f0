# SPDX-License-Identifier: Apache-2.0
import errno
import os
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softp4.native.ring import HOST, MAX_FRAME, SWITCH, VERSION, ShmPort
from softp4.native.shared_memory import PORT_BYTES
from tests.harness.confined import run_on_small_disk


def test_frames_arrive_in_order_both_ways(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH) as switch, ShmPort(tmp_path, 1) as host:
        for i in range(3000):  # more than the ring holds, so that it wraps
            assert host.send(i.to_bytes(4) * 8)
            assert switch.recv() == i.to_bytes(4) * 8
            assert switch.send(i.to_bytes(2))
            assert host.recv() == i.to_bytes(2)


def test_a_full_ring_refuses_and_loses_nothing(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH) as switch, ShmPort(tmp_path, 1) as host:
        sent = 0
        while host.send(sent.to_bytes(4)):
            sent += 1
        assert sent > 1000
        assert [switch.recv(0) for _ in range(sent)] == [i.to_bytes(4) for i in range(sent)]
        assert switch.recv(0) is None


def test_a_frame_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH) as switch, ShmPort(tmp_path, 1) as host:
        assert not host.send(bytes(MAX_FRAME + 1))
        assert host.send(bytes(MAX_FRAME))
        assert switch.recv() == bytes(MAX_FRAME)


def test_a_sleeping_reader_is_woken(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH) as switch, ShmPort(tmp_path, 1) as host:
        got: list[bytes | None] = []
        reader = threading.Thread(target=lambda: got.append(host.recv(30)))
        reader.start()
        switch.send(b"wake up")
        reader.join(30)
        echo = threading.Thread(target=lambda: got.append(switch.recv(30)))
        echo.start()
        host.send(b"you too")
        echo.join(30)
        assert got == [b"wake up", b"you too"]


def test_a_wake_up_without_a_frame_does_not_end_a_wait(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH) as switch, ShmPort(tmp_path, 1) as host:
        got: list[bytes | None] = []
        reader = threading.Thread(target=lambda: got.append(host.recv(30)))
        reader.start()
        for _ in range(300):  # until the reader sleeps, and on
            assert not switch.send(bytes(MAX_FRAME + 1))
            time.sleep(0.001)
        switch.send(b"at last")
        reader.join(30)
        assert got == [b"at last"]


@given(version=st.integers(0, 2**32 - 1).filter(lambda version: version != VERSION))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_other_version_is_refused_with_both_versions(tmp_path: Path, version: int) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as name, ShmPort(Path(name), 1, SWITCH) as switch:
        path = Path(name, "port-1")
        with path.open("r+b") as file:
            own = file.read(8)[4:]
            file.seek(4)
            file.write(version.to_bytes(4, sys.byteorder))
        with pytest.raises(
            OSError, match=f"version {version} of .* version {VERSION}: install the same"
        ) as got:
            ShmPort(Path(name), 1)
        assert got.value.errno == errno.EPROTO and got.value.filename == str(path)
        with path.open("r+b") as file:
            file.seek(4)
            file.write(own)
        with ShmPort(Path(name), 1) as host:  # the switch has not noticed
            assert switch.send(b"frame") and host.recv() == b"frame"


def test_a_port_that_no_switch_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="bell"):
        ShmPort(tmp_path, 1)
    with ShmPort(tmp_path, 1, SWITCH), pytest.raises(FileNotFoundError, match="port-2"):
        ShmPort(tmp_path, 2)


def test_a_port_of_another_layout_is_refused(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH):
        (tmp_path / "port-2").write_bytes(bytes(4096))
        with pytest.raises(OSError, match="port-2"):
            ShmPort(tmp_path, 2)


def test_a_host_that_lies_about_its_frames_harms_nobody(tmp_path: Path) -> None:
    with ShmPort(tmp_path, 1, SWITCH) as switch, ShmPort(tmp_path, 1) as host:
        host.send(b"good")
        with (tmp_path / "port-1").open("r+b") as file:  # ring 1 (host to switch) ends the file
            size = file.seek(0, 2)
            file.seek(size - (1 << 20))
            file.write((0xFFFFFFF0).to_bytes(4, "little"))  # its first record's length
        frame = switch.recv()
        assert frame is not None
        assert len(frame) == MAX_FRAME
        assert switch.recv(0) is None


@given(
    st.lists(st.one_of(st.integers(0, 1 << 16), st.binary(max_size=MAX_FRAME)), max_size=60),
    st.randoms(use_true_random=False),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_frames_of_any_length_arrive_whole(tmp_path: Path, drawn: list[int | bytes], random: Random) -> None:
    """A number stands for as many frames of its own, so that positions come to all places of the ring."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    with ShmPort(folder, 1, SWITCH) as switch, ShmPort(folder, 1) as host:
        waiting: deque[bytes] = deque()
        for what in drawn:
            frames = [what] if isinstance(what, bytes) else [what.to_bytes(4)] * (what % 50)
            for frame in frames:
                if host.send(frame):
                    waiting.append(frame)
                while waiting and random.random() < 0.5:
                    assert switch.recv(0) == waiting.popleft()
        while waiting:
            assert switch.recv(0) == waiting.popleft()
        assert switch.recv(0) is None


@given(st.lists(st.tuples(st.integers(0, (1 << 20) - 4), st.integers(0, 0xFFFFFFFF)), max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_length_that_a_host_writes_makes_a_switch_read_elsewhere(
    tmp_path: Path, lies: list[tuple[int, int]]
) -> None:
    """Whatever its records say, reading ends, and after at most what the host has published."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    with ShmPort(folder, 1, SWITCH) as switch, ShmPort(folder, 1) as host:
        for i in range(300):
            host.send(bytes(i * 13))
        with (folder / "port-1").open("r+b") as file:
            start = file.seek(0, 2) - (1 << 20)
            for at, value in [*lies, *((at // 64 * 64, value) for at, value in lies)]:
                file.seek(start + at // 4 * 4)
                file.write(value.to_bytes(4, "little"))
        read = 0
        while (frame := switch.recv(0)) is not None:
            assert len(frame) <= MAX_FRAME
            read += 1
        assert read <= (1 << 20) // 64
        assert host.send(b"and on")
        assert switch.recv(0) == b"and on"


def test_a_port_has_all_of_its_memory_from_the_start(tmp_path: Path) -> None:
    """Who touches a page later for which there is none left dies of SIGBUS."""
    with ShmPort(tmp_path, 1, SWITCH):
        made = (tmp_path / "port-1").stat()
        assert made.st_size == PORT_BYTES
        assert made.st_blocks * 512 >= PORT_BYTES


FILLED = """
import errno, sys
from pathlib import Path
from softp4.native.ring import MAX_FRAME, SWITCH, ShmPort
folder = Path(sys.argv[1])
with ShmPort(folder, 1, SWITCH) as switch, ShmPort(folder, 1) as host:
    try:
        ShmPort(folder, 2, SWITCH)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert not (folder / "port-2").exists()  # so that it can be made once there is room
    try:
        with (folder / "others").open("wb", 0) as others:
            while others.write(bytes(4096)):
                pass
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    for _ in range(2 * (1 << 20) // MAX_FRAME):  # round the rings
        assert host.send(bytes(MAX_FRAME)) and switch.recv() and switch.send(bytes(MAX_FRAME)) and host.recv()
print("done")
"""


@pytest.mark.root
def test_frames_go_on_when_others_fill_the_memory(tmp_path: Path) -> None:
    done = run_on_small_disk(tmp_path, 3 << 20, [sys.executable, "-c", FILLED, tmp_path])
    assert done.stdout == "done\n", f"{done.returncode}: {done.stderr}"


@pytest.mark.root
@pytest.mark.parametrize("name", ["bell", "port-1"])
@pytest.mark.parametrize("how", ["its owner", "its mode", "a link"])
def test_a_host_maps_no_memory_that_another_user_can_cut(tmp_path: Path, name: str, how: str) -> None:
    """Nor has a page of its own to lose: who can cut a file ends by SIGBUS every process that has mapped "
    "it."""
    with ShmPort(tmp_path, 1, SWITCH):
        path = tmp_path / name
        if how == "its owner":
            os.chown(path, 65534, 65534)
        elif how == "its mode":
            path.chmod(0o620)
        else:
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match=rf"\[Errno {errno.ELOOP if how == 'a link' else errno.EPERM}\]"):
            ShmPort(tmp_path, 1, HOST)
