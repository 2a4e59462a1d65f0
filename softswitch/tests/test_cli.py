# SPDX-License-Identifier: Apache-2.0
"""``softp4 run`` as a user runs it: a process, its files, its exit, its words when something is wrong."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgReader, wrpcap, wrpcapng
from typer.testing import CliRunner, Result

from softp4.channels import open_channel
from softp4.cli import app
from softp4.native.ring import ShmPort
from tests.harness import certificates
from tests.harness.confined import Capability, run_on_small_disk, then, without
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT, Controller

_COMMAND = [sys.executable, "-m", "softp4", "run"]
_MAC = 0x020000000002


def run(*arguments: object) -> Result:
    """Return the command, in this process, until it ends."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def refusal(*arguments: object) -> str:
    """Return what the command says when it refuses, in one line."""
    done = run(*arguments)
    assert done.exit_code in (1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return " ".join(done.stderr.replace("│", " ").split())


@contextmanager
def serving(folder: Path, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Yield the command, running; with what its ready file says."""
    ready = folder / "ready.json"
    command = [*_COMMAND, *map(str, arguments), "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            deadline = time.monotonic() + TIMEOUT
            while not ready.exists():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline, "the switch does not get ready"
                time.sleep(0.02)
            yield process, json.loads(ready.read_text())
        finally:
            process.kill()


def frame(to: int = _MAC, payload: bytes = bytes(46)) -> bytes:
    return to.to_bytes(6, "big") + bytes(6) + b"\x12\x34" + payload


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_switch_from_start_to_signal(tmp_path: Path, number: signal.Signals) -> None:
    shm = tmp_path / "shm"
    arguments = ("--port", "1=shm", "--port", "2=shm", "--shm", shm, "--grpc", "127.0.0.1:0")
    capture = tmp_path / "all.pcapng"
    with serving(tmp_path, "--program", CONTROL, *arguments, "--pcap", capture) as (process, ready):
        assert (ready["pid"], ready["device_id"], sorted(ready["ports"])) == (
            process.pid,
            1,
            ["1", "2", "510"],
        )
        controller = Controller(ready["grpc"])
        controller.learn()  # the P4Info was found beside the program
        controller.write("INSERT", table_entry=controller.station(_MAC))
        with ShmPort(shm, 1) as one, ShmPort(shm, 2) as two:
            one.send(frame())
            assert two.recv(TIMEOUT) == frame()
        controller.close()
        process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, output
    assert "P4Runtime on 127.0.0.1:" in output
    assert "Traceback" not in output
    assert not shm.exists()
    assert not (tmp_path / "ready.json").exists()
    with PcapNgReader(str(capture)) as reader:
        assert [bytes(packet) for packet in reader] == [frame(), frame()]


def test_a_switch_that_waits_for_its_program(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    with serving(tmp_path, "--port", "2=shm", "--shm", shm, "--grpc", "127.0.0.1:0", "--device-id", 7) as (
        _,
        ready,
    ):
        controller = Controller(ready["grpc"], device=7)
        controller.push()
        controller.write("INSERT", table_entry=controller.station(_MAC))
        with ShmPort(shm, 2) as two:
            two.send(frame())
            assert two.recv(TIMEOUT) == frame()
        controller.close()


def test_captures_are_played_in_order_of_time_and_written(tmp_path: Path) -> None:
    first, second, out = (tmp_path / name for name in ("first.pcap", "second.pcapng", "out.pcapng"))
    packets = [Ether(frame(payload=b"%d" % index)) for index in range(6)]
    for index, packet in enumerate(packets):
        packet.time = 1000 + index
    wrpcap(str(first), packets[::2])
    wrpcapng(str(second), packets[1::2])
    program = tmp_path / "out.json"
    program.write_text(_forwarding_program())
    ports = ("--port", f"1=pcap:{first},", "--port", f"2=pcap:{second},{out}")
    done = run("--program", program, *ports)
    assert done.exit_code == 0, done.stderr
    with PcapNgReader(str(out)) as reader:
        assert [bytes(packet) for packet in reader] == [bytes(packet) for packet in packets]


@pytest.mark.parametrize("what", ["--pcap", "output of a port"])
def test_a_file_that_found_no_room_is_no_success(tmp_path: Path, what: str) -> None:
    played, out = tmp_path / "played.pcap", "/dev/full" if what != "--pcap" else "/dev/null"
    wrpcap(str(played), [Ether(frame())])
    ports = ("--port", f"1=pcap:{played},", "--port", f"2=pcap:,{out}")
    capture = ("--pcap", "/dev/full") if what == "--pcap" else ()
    program = tmp_path / "out.json"
    program.write_text(_forwarding_program())
    told = refusal("--program", program, *ports, *capture)
    assert "/dev/full" in told
    assert "is not complete: No space left on device" in told


def test_a_trace_that_found_no_room_is_told_in_a_sentence(tmp_path: Path) -> None:
    played = tmp_path / "played.pcap"
    wrpcap(str(played), [Ether(frame())])
    ports = ("--port", f"1=pcap:{played},")
    command = [*_COMMAND, "--program", CONTROL, *ports, "--no-control", "--trace-file", "/dev/full"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("softp4 run: /dev/full: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.root
def test_what_a_full_disk_holds_of_a_capture_can_be_read(tmp_path: Path) -> None:
    played, small, copy = tmp_path / "played.pcap", tmp_path / "small", tmp_path / "copy.pcapng"
    small.mkdir()
    frames = [Ether(frame(payload=bytes([n % 256] * 1000))) for n in range(3000)]
    wrpcap(str(played), frames)
    command = [*_COMMAND, "--program", CONTROL, "--port", f"1=pcap:{played},", "--no-control"]
    command += ["--pcap", str(small / "all.pcapng")]
    done = run_on_small_disk(small, 2 << 20, then(command, "cp", small / "all.pcapng", copy))
    assert done.returncode == 1
    assert f"capture file {small}/all.pcapng is not complete: No space left on device" in done.stderr
    with PcapNgReader(str(copy)) as reader:
        kept = [bytes(packet) for packet in reader]
    assert 0 < len(kept) < len(frames)
    assert kept == [bytes(packet) for packet in frames[: len(kept)]]


def test_a_played_capture_ends_when_the_last_frame_has_left(tmp_path: Path) -> None:
    """Through a limited port: played in a moment, sent at 100 frames a second."""
    played, out = tmp_path / "played.pcap", tmp_path / "out.pcapng"
    packets = [Ether(frame(payload=b"%d" % index)) for index in range(20)]
    wrpcap(str(played), packets)
    program = tmp_path / "out.json"
    program.write_text(_forwarding_program())
    ports = ("--port", f"1=pcap:{played},", "--port", f"2=pcap:,{out},pps=100")
    done = run("--program", program, *ports)
    assert done.exit_code == 0, done.stderr
    with PcapNgReader(str(out)) as reader:
        assert [bytes(packet) for packet in reader] == [bytes(packet) for packet in packets]


def _forwarding_program() -> str:
    """Return the program with another default: everything goes to port 2."""
    program = json.loads(CONTROL.read_text())
    forward = next(
        action["id"] for action in program["actions"] if action["name"] == "ControlIngress.forward"
    )
    for table in program["pipelines"][0]["tables"]:
        if table["name"] == "ControlIngress.stations":
            table["default_entry"] |= {"action_id": forward, "action_data": ["0x2"]}
    return json.dumps(program)


_ERRORS: dict[str, tuple[list[object], str]] = {
    "nothing to do": ([], "give a --program to run, or --grpc for a controller to set one, or both"),
    "no such program": (["--program", "/nowhere.json"], "/nowhere.json"),
    "not JSON": (["--program", __file__], "is not"),
    "no port number": (
        ["--grpc", "127.0.0.1:0", "--port", "veth1"],
        "expected N=IFACE, N=shm, N=udp:",
    ),
    "port too high": (["--grpc", "127.0.0.1:0", "--port", "511=veth1"], "with N from 0 to 510"),
    "no rate": (
        ["--grpc", "127.0.0.1:0", "--port", "1=shm,rate=fast"],
        "'1=shm,rate=fast': 'fast' is no rate",
    ),
    "no interface": (
        ["--grpc", "127.0.0.1:0", "--port", "1=nosuchif0"],
        "port 1, interface 'nosuchif0': there is no such network interface",
    ),
    "port twice": (
        ["--grpc", "127.0.0.1:0", "--port", "1=pcap:,/dev/null", "--port", "1=pcap:,/dev/null"],
        "port 1 is already",
    ),
    "CPU port taken": (["--grpc", "127.0.0.1:0", "--port", "510=pcap:,/dev/null"], "port 510 is already cpu"),
    "no directory": (["--grpc", "127.0.0.1:0", "--port", "1=shm"], "shared-memory ports need --shm DIR"),
    "no file": (["--grpc", "127.0.0.1:0", "--port", "1=pcap:,"], "with at least one file"),
    "no capture": (["--program", CONTROL, "--port", "1=pcap:/nowhere.pcap,"], "/nowhere.pcap: No such file"),
    "not a capture": (["--program", CONTROL, "--port", f"1=pcap:{CONTROL},"], "neither pcap nor pcapng"),
    "no address": (["--grpc", "9559"], "'9559' is neither host:port nor unix:/path"),
    "half of TLS": (["--grpc", "127.0.0.1:0", "--tls-key", "x"], "TLS needs both --tls-cert and --tls-key"),
    "no TLS file": (
        ["--grpc", "127.0.0.1:0", "--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"],
        "TLS: cannot read /nowhere.pem",
    ),
}


@pytest.mark.parametrize("case", _ERRORS, ids=lambda case: case.replace(" ", "-"))
def test_errors_are_said_clearly(case: str) -> None:
    arguments, message = _ERRORS[case]
    assert message in refusal(*arguments)


def test_an_unsupported_construct_is_named(tmp_path: Path) -> None:
    program = tmp_path / "odd.json"
    program.write_text(CONTROL.read_text().replace('"mark_to_drop"', '"teleport"'))
    assert "teleport" in refusal("--program", program)


def test_two_switches_cannot_share_an_address_or_a_directory(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    with serving(tmp_path, "--grpc", "127.0.0.1:0", "--port", "1=shm", "--shm", shm) as (_, ready):
        assert f"gRPC cannot listen on {ready['grpc']}" in refusal("--grpc", ready["grpc"])
        assert "another switch serves it" in refusal("--grpc", "127.0.0.1:0", "--port", "1=shm", "--shm", shm)
        assert (shm / "port-1").exists()


def test_without_the_right_to_raw_sockets_the_error_says_so(tmp_path: Path) -> None:
    command = [*without(Capability.NET_RAW), *_COMMAND]
    done = subprocess.run(
        [*command, "--grpc", "127.0.0.1:0", "--port", "1=lo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "not allowed: run as root, or give Python CAP_NET_RAW" in done.stderr


def test_help_names_every_kind_of_port() -> None:
    done = run("--help")
    assert done.exit_code == 0
    said = " ".join(done.stdout.replace("│", " ").split())
    for word in (
        "N=IFACE",
        "N=shm",
        "N=udp:",
        "N=pcap:IN,OUT",
        "rate=RATE",
        "--grpc",
        "--ready-file",
        "--tls-ca",
        "--play-after",
    ):
        assert word in said


# -- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a certificate authority ``ca``, and certificates ``server`` and ``client`` that it signed."""
    folder = tmp_path_factory.mktemp("pki")
    certificates.make(folder)
    return folder


def test_mutual_tls_lets_in_only_those_with_a_certificate(tmp_path: Path, pki: Path) -> None:
    files = ("--tls-cert", pki / "server.pem", "--tls-key", pki / "server.key", "--tls-ca", pki / "ca.pem")
    with serving(tmp_path, "--grpc", "127.0.0.1:0", *files) as (_, ready):
        known = certificates.credentials(pki, "ca", "client")
        controller = Controller(ready["grpc"], credentials=known)
        controller.push()
        controller.close()
        stranger = certificates.credentials(pki, "ca")
        for channel in (open_channel(ready["grpc"], stranger), open_channel(ready["grpc"])):
            with channel, pytest.raises(grpc.RpcError) as refused:
                Controller.capabilities(channel)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_tls_files_that_do_not_fit_are_refused(pki: Path) -> None:
    files = ("--tls-cert", pki / "server.pem", "--tls-key", pki / "ca.pem")
    assert f"TLS: {pki}/server.pem with key {pki}/ca.pem" in refusal("--grpc", "127.0.0.1:0", *files)
