# SPDX-License-Identifier: Apache-2.0
import threading
import time
from pathlib import Path

import pytest

from weir.native.ring import MAX_FRAME, SWITCH, ShmPort


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
        assert sent == 512
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
            file.seek(size - 512 * 2048)
            file.write((0xFFFFFFFF).to_bytes(4, "little"))  # its first cell's length
        frame = switch.recv()
        assert frame is not None
        assert len(frame) == MAX_FRAME
        assert switch.recv(0) is None
