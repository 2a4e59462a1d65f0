# SPDX-License-Identifier: Apache-2.0
"""Captures: started and stopped while frames pass, of all ports or some, one way or both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.utils import PcapNgReader

from softp4.dataplane.ports import Directions, PortError, PortLoop
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT

_IN, _OUT = 1, 2


@pytest.fixture
def loop() -> Iterator[PortLoop]:
    """Yield a running loop; what comes in at 1 or 2 leaves at the other."""
    with Switch(CONTROL, cpu_port=510) as switch, PortLoop() as made:
        for port in (1, 2):
            switch.table("ControlIngress.stations").insert(
                Entry((Exact(port),), "ControlIngress.forward", (port,))
            )
        made.set_switch(switch)
        for port in (1, 2):
            made.add_queue(port, f"queue {port}")
        made.start()
        yield made


def frame(to: int, text: bytes = b"") -> bytes:
    return to.to_bytes(6, "big") + bytes(6) + b"\x12\x34" + text.ljust(46, b"\0")


def pass_on(loop: PortLoop, to: int, text: bytes = b"") -> None:
    """From the other port; until it has left."""
    loop.inject(3 - to, frame(to, text))
    assert loop.receive(to, TIMEOUT) == frame(to, text)


def seen(path: Path) -> list[tuple[bytes, str, int]]:
    with PcapNgReader(str(path)) as reader:
        return [(bytes(packet), packet.sniffed_on, packet.direction) for packet in reader]


def test_all_ports_also_those_that_come_later(loop: PortLoop, tmp_path: Path) -> None:
    loop.remove(2)
    loop.capture(tmp_path / "all")
    loop.add_queue(2, "right")
    for index in range(3):
        pass_on(loop, 2, b"%d" % index)
    assert [capture.error for capture in loop.captures()] == [None]
    loop.close()
    assert seen(tmp_path / "all") == [
        (frame(2, b"%d" % index), port, direction)
        for index in range(3)
        for port, direction in (("port 1 (queue 1)", _IN), ("port 2 (right)", _OUT))
    ]


def test_captures_of_one_port_start_and_stop_while_frames_pass(loop: PortLoop, tmp_path: Path) -> None:
    both, sent, everything = (tmp_path / name for name in ("both", "sent", "everything"))
    pass_on(loop, 2, b"before")
    loop.capture(both, [1])
    loop.capture(sent, [1], Directions.OUT)
    loop.capture(everything)
    pass_on(loop, 2, b"first")
    pass_on(loop, 1, b"second")
    loop.stop_capture(both)
    loop.stop_capture(sent)
    pass_on(loop, 1, b"after")
    one = "port 1 (queue 1)"
    assert seen(both) == [(frame(2, b"first"), one, _IN), (frame(1, b"second"), one, _OUT)]
    assert seen(sent) == [(frame(1, b"second"), one, _OUT)]
    assert [capture.path for capture in loop.captures()] == [everything]
    loop.stop_capture(everything)
    assert [text for text, _, _ in seen(everything)] == [
        frame(to, text) for to, text in ((2, b"first"), (1, b"second"), (1, b"after")) for _ in range(2)
    ]


def test_a_port_that_comes_back_is_another_interface_of_the_file(loop: PortLoop, tmp_path: Path) -> None:
    loop.capture(tmp_path / "one", [1], Directions.IN)
    pass_on(loop, 2)
    loop.remove(1)
    loop.add_queue(1, "again")
    pass_on(loop, 2)
    loop.close()
    assert [name for _, name, _ in seen(tmp_path / "one")] == ["port 1 (queue 1)", "port 1 (again)"]


def test_a_port_that_is_down_is_counted_and_not_captured(loop: PortLoop, tmp_path: Path) -> None:
    loop.capture(tmp_path / "all")
    loop.set_up(2, False)
    loop.inject(1, frame(2))
    loop.inject(2, frame(1))
    for port in (1, 2):
        assert loop.drain(port, TIMEOUT)
    assert loop.statistics(2).tx_drops == loop.statistics(2).rx_drops == 1
    loop.set_up(2, True)
    pass_on(loop, 2)
    loop.close()
    names = [name for _, name, _ in seen(tmp_path / "all")]
    assert names == ["port 1 (queue 1)", "port 1 (queue 1)", "port 2 (queue 2)"]


def test_captures_that_cannot_be_say_why(loop: PortLoop, tmp_path: Path) -> None:
    loop.capture(tmp_path / "taken")
    for path, ports, words in (
        (tmp_path / "nowhere" / "x", None, "No such file or directory"),
        (tmp_path / "taken", [1], "is being written already"),
        (tmp_path / "x", [511], "port numbers are 0 to 510"),
        (tmp_path / "x", [], "port numbers are 0 to 510"),
    ):
        with pytest.raises(PortError, match=rf"capture file .*{path.name}: {words}"):
            loop.capture(path, ports)
    with pytest.raises(PortError, match="is not being written"):
        loop.stop_capture(tmp_path / "x")


def test_a_full_disk_ends_the_capture_and_not_the_switch(loop: PortLoop) -> None:
    full = Path("/dev/full")
    loop.capture(full)
    loop.inject(1, frame(2))
    while loop.captures()[0].error is None:
        pass
    assert loop.captures()[0].error == "No space left on device"
    pass_on(loop, 1)


def test_a_capture_that_found_no_room_says_so_when_it_is_stopped(loop: PortLoop) -> None:
    full = Path("/dev/full")
    loop.capture(full)
    pass_on(loop, 2)
    with pytest.raises(PortError, match="capture file /dev/full is not complete: No space left on device"):
        loop.stop_capture(full)
    assert loop.captures() == []


def test_all_files_are_closed_although_one_is_not_complete(loop: PortLoop, tmp_path: Path) -> None:
    loop.capture(Path("/dev/full"))
    loop.capture(tmp_path / "all")
    pass_on(loop, 2)
    with pytest.raises(PortError, match="/dev/full is not complete"):
        loop.close_files()
    assert len(seen(tmp_path / "all")) == 2
    loop.close_files()
