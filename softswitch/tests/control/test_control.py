# SPDX-License-Identifier: Apache-2.0
"""The control channel: what it changes in a running switch, what it refuses, and who may use it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from softp4.cli import app
from softp4.control.address import (
    ControlAddressError,
    abandoned_sockets,
    own_socket,
    running,
)
from softp4.control.client import CallFailedError, call
from softp4.control.operations import Operations
from softp4.control.server import MAX_REQUEST, ControlServer
from softp4.device import Device
from softp4.native.ring import ShmPort
from softp4.tracing.tracer import Tracing
from tests.dataplane.test_ports_capture import seen
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT, Controller


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    return tmp_path / "shm"


@pytest.fixture
def path(short_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the socket of a running device whose ports are shared memory, and to which nobody else's is
    known.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    with Device(seed=1) as device:
        device.open_shm(shm)
        device.load(CONTROL)
        device.start()
        server = ControlServer(own_socket(), Operations(device).calls())
        try:
            yield server.path
        finally:
            server.close()
            assert not server.path.exists()


def ctl(*arguments: object) -> str:
    """``softp4 ctl``: what it prints."""
    done = CliRunner().invoke(app, ["ctl", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object) -> str:
    """Return what it says on standard error when it refuses."""
    done = CliRunner().invoke(app, ["ctl", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code in (1, 2)
    return done.stderr


def rows(table: str) -> list[list[str]]:
    """Return the cells of a printed table, without its head."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]


def test_ports_come_and_go_and_count(path: Path, shm: Path) -> None:
    ctl("ports", "add", "1=shm,rate=1gbit,depth=9")
    ctl("ports", "add", "2=shm")
    limits = "rate 1,000,000,000 bit/s, depth 9 packets"
    assert rows(ctl("ports", "list"))[:2] == [
        ["1", "up", f"shm in {shm}", limits],
        ["2", "up", f"shm in {shm}", "-"],
    ]
    ctl("ports", "down", 2)
    assert rows(ctl("ports", "list"))[1][1] == "down"
    with ShmPort(shm, 1) as one, ShmPort(shm, 2) as two:
        one.send(bytes(60))  # goes nowhere, but is counted
        two.send(bytes(60))
        while rows(ctl("ports", "stats", 2))[0] != ["2", "1", "60", "1", *"000000"]:
            pass
    ctl("ports", "up", 2)
    ctl("ports", "remove", 2)
    assert [port["port"] for port in json.loads(ctl("--json", "ports", "list"))] == [1, 510]
    assert not (shm / "port-2").exists()


def test_limits_are_set_shown_and_lifted(path: Path) -> None:
    ctl("ports", "add", "1=shm")
    ctl("queueing", "set", 1, "--rate", "10mbit", "--depth", 5)
    shown = ctl("queueing", "show", 1)
    assert shown.startswith("port 1: rate 10,000,000 bit/s, depth 5 packets\n")
    assert [row[0] for row in rows(shown)] == ["7", "6", "5", "4", "3", "2", "1", "0"]
    ctl("queueing", "clear", 1)
    assert ctl("queueing", "show", 1) == "port 1: no limits\nnone\n"


def test_a_capture_of_one_port(path: Path, shm: Path, tmp_path: Path) -> None:
    ctl("ports", "add", "1=shm")
    ctl("ports", "add", "2=shm")
    file = tmp_path / "one.pcapng"
    ctl("capture", "start", file, "--port", 1, "--direction", "in")
    assert rows(ctl("capture", "list")) == [[str(file), "1", "in", "-"]]
    with ShmPort(shm, 1) as one, ShmPort(shm, 2) as two:
        two.send(b"\2" * 60)
        one.send(b"\1" * 60)
        while call(path, "ports")[0]["statistics"]["rx_packets"] == 0:
            pass
    ctl("capture", "stop", file)
    assert ctl("capture", "list") == "none\n"
    assert [frame for frame, _, _ in seen(file)] == [b"\1" * 60]


def test_info_says_what_runs(path: Path) -> None:
    said = ctl("info")
    assert str(os.getpid()) in said
    assert str(CONTROL) in said
    assert "ControlIngress.stations" in said
    [row] = rows(ctl("list"))
    assert row[:2] == [str(os.getpid()), "1"]


def test_what_is_refused(path: Path, tmp_path: Path) -> None:
    ctl("ports", "add", "1=shm")
    for words, arguments in {
        "port 1, shm in": ("ports", "add", "1=shm"),
        "expected N=IFACE": ("ports", "add", "shm"),
        "there is no such network interface": ("ports", "add", "3=nosuch0"),
        "a file to play is given when the switch starts": ("ports", "add", "3=pcap:x,y"),
        "port 510 leads to the controller": ("ports", "remove", 510),
        "there is no such port: 9": ("ports", "down", 9),
        "give at least one limit": ("queueing", "set", 1),
        "'fast' is no rate": ("queueing", "set", 1, "--rate", "fast"),
        "is not being written": ("capture", "stop", tmp_path / "x"),
        "directions: in, out or both": ("capture", "start", tmp_path / "x", "--direction", "up"),
        "no switch of yours runs as process 1": ("--pid", 1, "info"),
        "no switch answers at /nowhere": ("--socket", "/nowhere", "info"),
    }.items():
        assert words in " ".join(refused(*arguments).replace("│", " ").split()), arguments
    assert sorted(port["port"] for port in call(path, "ports")) == [1, 510]


@pytest.mark.parametrize(
    ("request_line", "words"),
    [
        (b"hello", "one line of JSON"),
        (b"[" * 60000, "one line of JSON"),
        (b"\xff\xfe", "one line of JSON"),
        (b"[]", "a request is"),
        (b'{"call": 1}', "a request is"),
        (b'{"call": "ports", "args": []}', "a request is"),
        (b'{"call": "reboot"}', "there is no call 'reboot'"),
        (b'{"call": "ports", "args": {"x": 1}}', "unexpected keyword argument 'x'"),
        (b'{"call": "port_up"}', "missing 1 required keyword-only argument: 'port'"),
        (b'{"call": "port_up", "args": {"port": "1"}}', "port: a port number"),
        (b'{"call": "port_up", "args": {"port": 1e3}}', "port: a port number"),
        (b'{"call": "port_add", "args": {"spec": ["1=shm"]}}', "spec: a text"),
        (b'{"call": "port_add", "args": {"spec": "1=a\\u0000b"}}', "spec: a text"),
        (b'{"call": "capture_start", "args": {"file": "x", "ports": 3}}', "ports: a list"),
        (b'{"call": "queueing_set", "args": {"port": 510, "colour": 3}}', "no limit 'colour'"),
    ],
)
def test_requests_gone_wrong_are_answered(path: Path, request_line: bytes, words: str) -> None:
    """And the connection goes on."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.settimeout(TIMEOUT)
        stream = connection.makefile("rwb")
        for line in (request_line, b'{"call": "info"}'):
            stream.write(line + b"\n")
            stream.flush()
            answer: dict[str, Any] = json.loads(stream.readline())
            if line is request_line:
                assert words in answer["error"]
        assert answer["result"]["pid"] == os.getpid()


def test_an_endless_request_is_cut_off(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.settimeout(TIMEOUT)
        connection.sendall(b"x" * MAX_REQUEST)
        with connection.makefile("rb") as stream:
            assert b"one line of JSON" in stream.readline()
            assert stream.readline() == b""
    assert call(path, "info")["pid"] == os.getpid()


def test_only_the_owner_may_connect(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o770)
    with pytest.raises(ControlAddressError, match="is not a directory of yours alone"):
        own_socket()


def test_two_switches_cannot_share_a_socket_but_a_killed_one_is_followed(path: Path) -> None:
    with pytest.raises(ControlAddressError, match="another switch listens there"):
        ControlServer(path, {})
    killed = path.with_name("switch-1.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(killed))
    assert running() == {os.getpid(): path}
    assert not killed.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(killed))
    ControlServer(killed, {}).close()


def test_a_client_that_goes_silent_holds_nobody_up(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        silent.send(b'{"call"')
        assert call(path, "info")["pid"] == os.getpid()


def test_calls_go_on_while_ports_come_and_go(path: Path) -> None:
    """From a process of its own, so that both really run at once."""
    code = (
        "import sys; from pathlib import Path; from softp4.control.client import call\n"
        "for _ in range(100): call(Path(sys.argv[1]), 'ports')"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        while process.poll() is None:
            call(path, "port_add", spec="7=shm")
            call(path, "port_remove", port=7)
    assert process.returncode == 0


def test_a_switch_process_has_a_socket_of_its_own_until_it_ends(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    command = [sys.executable, "-m", "softp4", "run", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("P4Runtime on")
        assert call(running()[process.pid], "info")["program"] is None
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0
    with pytest.raises(CallFailedError, match="no switch answers"):
        call(short_path / "softp4" / f"switch-{process.pid}.sock", "info")
    assert refused("info").startswith("softp4 ctl: no switch of yours is running")


def test_a_trace_starts_and_stops_while_frames_run(path: Path, shm: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    ctl("ports", "add", "1=shm")
    ctl("ports", "add", "2=shm")
    with ShmPort(shm, 1) as one, ShmPort(shm, 2) as two:
        one.send(bytes(60))
        ctl("trace", "start", file, "--port", 1, "--frames", 2)
        for port in (two, one, one, one):
            port.send(bytes(60))
        deadline = time.monotonic() + TIMEOUT
        while "#2" not in file.read_text():
            assert time.monotonic() < deadline, file.read_text()
            time.sleep(0.02)
        ctl("trace", "stop")
    titles = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert titles == ["#1 in port 1, 60 bytes", "#2 in port 1, 60 bytes"]
    assert "No such file" in refused("trace", "start", tmp_path / "nowhere" / "trace.txt")
    assert ctl("trace", "stop") == "", "harmless when nothing is traced"


def test_a_trace_goes_on_under_another_program(tmp_path: Path) -> None:
    with Device(seed=1) as device:
        device.start_trace(Tracing(tmp_path / "trace.txt"))
        device.start()
        controller = Controller(device.serve("127.0.0.1:0"))
        for _ in range(2):
            controller.push()
            device.loop.inject(device.cpu_port, bytes(60))
            assert device.loop.drain(device.cpu_port)
        controller.close()
    titles = [line for line in (tmp_path / "trace.txt").read_text().splitlines() if line.startswith("#")]
    assert titles == ["#1 in port 510, 60 bytes"] * 2, "each program counts its own"


IMPOSTOR = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
os.chdir(sys.argv[1])
os.setuid(65534)
server.bind(sys.argv[2])
os.chmod(sys.argv[2], 0o777)
server.listen()
print("listens", flush=True)
connection, _ = server.accept()
print("heard", connection.recv(100))
"""


@pytest.mark.root
def test_nothing_is_sent_to_a_socket_of_another_user(short_path: Path) -> None:
    short_path.chmod(0o777)
    command = [sys.executable, "-c", IMPOSTOR, str(short_path), "switch-7.sock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        said = refused("--socket", short_path / "switch-7.sock", "info")
        assert "is served by user" in said and "65534" in said and "nothing was sent there" in said
        assert process.stdout.readline() == "heard b''\n"


@pytest.mark.root
@pytest.mark.parametrize("command", [("info",), ("list",), ("ports", "list")])
def test_sockets_in_a_directory_of_another_user_are_not_looked_at(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    place = short_path / "softp4"
    place.mkdir(mode=0o777)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "switch-7.sock"))
        os.chown(place, 65534, 65534)
        said = refused(*command)
        assert f"control directory {place} is not a directory of yours alone" in said and "65534" in said
        with pytest.raises(ControlAddressError):
            abandoned_sockets()
    assert (place / "switch-7.sock").exists()


@pytest.mark.parametrize("answer", [b"[]\n", b"{}\n", b"junk\n", b"\xff\n", b""])
def test_an_answer_that_no_switch_gives_is_an_error(short_path: Path, answer: bytes) -> None:
    path = short_path / "switch-7.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(CallFailedError, match=r"not a switch of this version|ended the connection"):
            call(path, "info")
        server.join()
