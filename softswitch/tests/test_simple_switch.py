# SPDX-License-Identifier: Apache-2.0
"""The command lines of simple_switch and simple_switch_grpc: one line starts BMv2 or the soft switch.

What a P4 tutorial does then - set the program, write entries, ping - works on both.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from scapy.layers.l2 import Ether
from scapy.utils import PcapReader, RawPcapReader, wrpcap

from softp4.channels import open_channel
from softp4.simple_switch import main
from tests.dataplane.veths import Veths, mac_bytes, made_veths
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT, Controller

SOFT = (sys.executable, "-m", "softp4.simple_switch")
SWITCHES = pytest.mark.parametrize(
    "command", [SOFT, pytest.param(("simple_switch_grpc",), marks=pytest.mark.bmv2)], ids=["soft", "bmv2"]
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Veths]:
    with made_veths() as made:
        for host in made.hosts.values():
            host.compute_checksums("eth0")
        yield made


@contextmanager
def serving(lab: Veths, folder: Path, line: Sequence[str]) -> Iterator[Path]:
    """Yield a switch started by that line in ``folder``; its log."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([*lab.switch.prefix, *line], cwd=folder, stdout=out, stderr=out)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def controller(address: str, device: int, log: Path) -> Controller:
    """Return a session, once the switch listens."""
    with open_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(TIMEOUT)
        except grpc.FutureTimeoutError:
            raise AssertionError(log.read_text()) from None
    return Controller(address, device=device)


@pytest.mark.root
@SWITCHES
def test_a_tutorials_way_to_start_a_switch(command: tuple[str, ...], lab: Veths, tmp_path: Path) -> None:
    (tmp_path / "pcaps").mkdir()
    line = [*command, "-i", "1@sw1", "-i", "2@sw2", "--pcap", "pcaps", "--nanolog", f"ipc://{tmp_path}/nano"]
    line += ["--device-id", "3", str(CONTROL), "--log-console", "--thrift-port", "9090"]
    address = f"unix:{tmp_path}/grpc"  # this process is not where the switch is
    line += ["--", "--grpc-server-addr", address, "--cpu-port", "255"]
    with serving(lab, tmp_path, line) as log:
        session = controller(address, 3, log)
        session.push()
        for host in lab.hosts:
            station = session.station(int.from_bytes(mac_bytes(host), "big"))
            station.action.action.params[0].value = bytes([host])
            session.write("INSERT", table_entry=station)
        with lab.udp(1) as one, lab.udp(2) as two:
            one.sendto(b"ping", ("10.0.0.2", 5000))
            assert two.recvfrom(100) == (b"ping", ("10.0.0.1", 5000))
            two.sendto(b"pong", ("10.0.0.1", 5000))
            assert one.recvfrom(100) == (b"pong", ("10.0.0.2", 5000))
        session.close()
    for name, text in {"sw1_in": b"ping", "sw2_out": b"ping", "sw2_in": b"pong", "sw1_out": b"pong"}.items():
        frames = [raw for raw, _ in RawPcapReader(str(tmp_path / "pcaps" / f"{name}.pcap")) if text in raw]
        assert len(frames) == 1, name


@SWITCHES
def test_files_instead_of_interfaces(command: tuple[str, ...], tmp_path: Path) -> None:
    """X_in.pcap is played, X_out.pcap written, as p4c's own tests do it. The default route is port 2."""
    frames = [mac_bytes(9) + bytes(6) + b"\x12\x34" + bytes([index] * 46) for index in range(5)]
    wrpcap(str(tmp_path / "left_in.pcap"), [Ether(frame) for frame in frames])
    wrpcap(str(tmp_path / "right_in.pcap"), [], linktype=1)
    program = tmp_path / "program.json"
    program.write_text(_to_port_2())
    line = [*command, "--use-files", "0", "-i", "1@left", "-i", "2@right", str(program)]
    address = f"unix:{tmp_path}/grpc"
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(
            [*line, "--", "--grpc-server-addr", address], cwd=tmp_path, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + TIMEOUT
        while _frames(tmp_path / "right_out.pcap") != frames:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def _frames(path: Path) -> list[bytes]:
    """Return what is in a pcap file so far."""
    if not path.exists() or path.stat().st_size < 24:
        return []
    with PcapReader(str(path)) as reader:
        return [bytes(packet) for packet in reader]


def _to_port_2() -> str:
    from tests.test_cli import _forwarding_program

    return _forwarding_program()


def test_level_trace_prints_what_frames_go_through(tmp_path: Path) -> None:
    wrpcap(str(tmp_path / "left_in.pcap"), [Ether(mac_bytes(9) + bytes(6) + b"\x12\x34" + bytes(46))])
    line = [*SOFT, "--use-files", "0", "-i", "1@left", "--log-console", "-L", "trace", str(CONTROL)]
    address = f"unix:{tmp_path}/grpc"
    with subprocess.Popen(
        [*line, "--", "--grpc-server-addr", address],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "#1 in port 1, 60 bytes\n"
        process.terminate()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--no-p4", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--no-p4", "--", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--no-p4", "--cpu-port", "255"], "unrecognized arguments: --cpu-port"),
        ([], "give a JSON file, or --no-p4"),
        (["--no-p4", CONTROL], "not both"),
        (["/nowhere.json"], "/nowhere.json: No such file"),
        (["--no-p4", "-i", "veth1"], "-i veth1: expected N@IFACE with N from 0 to 510"),
        (["--no-p4", "-i", "511@veth1"], "expected N@IFACE"),
        (["--no-p4", "-i", "1@a", "-i", "1@b"], "-i 1@b: port 1 is a already"),
        (["--no-p4", "-i", "1@nosuch0"], "there is no such network interface"),
        (["--no-p4", "--pcap", "/nowhere"], "--pcap: there is no directory /nowhere"),
        (["--no-p4", "--packet-in", "ipc://x"], "--packet-in is not supported: frames come through"),
        (["--no-p4", "--restore-state", "x"], "--restore-state is not supported"),
        (["--no-p4", "--", "--load-modules", "x.so"], "--load-modules is not supported"),
        (["--no-p4", "--", "--dp-grpc-server-addr", "x"], "--dp-grpc-server-addr is not supported"),
        (["--no-p4", "--", "--drop-port", "5"], "--drop-port 5 is not supported: it is 511"),
        (["--no-p4", "--", "--priority-queues", "9"], "--priority-queues 9 is not supported: 1 to 8"),
        (["--no-p4", "--", "--cpu-port", "0"], "--cpu-port 0: 1 to 510"),
        (["--no-p4", "--", "--grpc-server-ssl"], "--grpc-server-ssl needs --grpc-server-cert"),
        (["--no-p4", "--", "--grpc-server-addr", "nowhere"], "neither host:port nor unix:/path"),
    ],
)
def test_what_is_refused_is_named(line: list[object], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in line])
    assert end.value.code == 1
    assert says in " ".join(capsys.readouterr().err.split())


def test_help_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    help_text = capsys.readouterr().out
    for option in ("--interface", "--thrift-port", "--grpc-server-addr", "--cpu-port", "--priority-queues"):
        assert option in help_text
    main(["--json-version"])
    assert capsys.readouterr().out.startswith("2.")
