# SPDX-License-Identifier: Apache-2.0
"""Weir's own gRPC takes no HTTP proxy that the machine has for the web, is quiet when a process forks, and
ends reads from servers that stop.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from softp4.channels import open_channel
from softp4.device import Device
from softp4.p4runtime.session import Session, SessionError
from tests.harness.bfrt import FakeTofino
from weir.agent_service.client import AgentClient, AgentError
from weir.controller.bfrt.session import Session as BfrtSession
from weir.controller.server import Settings, running
from weir.controller.topology import single_switch

ROOT = Path(__file__).resolve().parents[1]
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class Proxy:
    """A server that takes connections, notes what each begins with, and closes it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                begins = connection.recv(100)
            if not begins:
                return
            self.heard.append(begins)

    def close(self) -> None:
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Yield the proxy that the environment names for the web."""
    made = Proxy()
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in PROXIES:
        monkeypatch.setenv(name, made.url)
    yield made
    made.close()


def own_address() -> str:
    """Return an address of this machine that is not a loopback one. Skips the test where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("where", ["loopback", "network"])
def test_agents_and_controllers_go_round_a_proxy(proxy: Proxy, where: str) -> None:
    here = "127.0.0.1" if where == "loopback" else own_address()
    with Device() as device:
        switch = device.serve(f"{here}:0")
        with (
            Session(switch) as session,
            running(single_switch(1, switch), Settings(f"{here}:0")) as controller,
            AgentClient(controller.address) as agent,
        ):
            assert session.primary
            assert agent.status().switches[0].name == "s1"
    assert not proxy.heard


def test_so_does_the_controller_of_a_tofino(proxy: Proxy) -> None:
    driver = FakeTofino()
    driver.start()
    session = BfrtSession(driver.address, device_id=0)
    assert session.alive
    session.close()
    driver.stop()
    assert not proxy.heard


def test_a_proxy_that_is_named_for_grpc_is_taken(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("grpc_proxy", proxy.url)
    monkeypatch.setattr("weir.agent_service.client.CONNECT_TIMEOUT_S", 2.0)
    with pytest.raises(SessionError):
        Session("switch.example:9559", timeout=2.0)
    with pytest.raises(AgentError), AgentClient("controller.example:9600") as agent:
        agent.status()
    asked = {request.split()[1] for request in proxy.heard}
    assert asked == {b"switch.example:9559", b"controller.example:9600"}


def test_weir_shell_has_its_program_go_round_a_proxy(proxy: Proxy, tmp_path: Path) -> None:
    """It says so in the environment, which is as good as an option of a channel."""
    stand_in = tmp_path / "python"
    with Device() as device:
        address = device.serve("127.0.0.1:0")
        stand_in.write_text(
            f"#!{sys.executable}\n"
            "import grpc\n"
            f"grpc.channel_ready_future(grpc.insecure_channel({address!r})).result(10)\n"
            "print('reached')\n"
        )
        stand_in.chmod(0o755)
        command = [sys.executable, "-m", "weir", "shell", "--grpc", address, "--python", str(stand_in)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "reached\n", done.stderr
    assert not proxy.heard


def test_channels_are_opened_in_one_place() -> None:
    own, here = ROOT / "softswitch" / "softp4" / "channels.py", Path(__file__)
    files = [path for path in ROOT.rglob("*.py") if not path.relative_to(ROOT).parts[0].startswith(".")]
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in files
        if path not in (own, here)
        and re.search(r"(?<!_)\b(?:in)?secure_channel\(", path.read_text(encoding="utf-8"))
    ]
    assert own in files and not elsewhere


FORKS = """
import os, threading
import weir.agent_service.client
from softp4.p4runtime.session import Session
from softp4.device import Device
with Device() as device, Session(device.serve("127.0.0.1:0")):  # whose stream a thread reads
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
print(os.environ.get("GRPC_VERBOSITY"))
"""


@pytest.mark.parametrize("verbosity", [None, "INFO"])
def test_forks_are_quiet_unless_grpc_is_asked_to_speak(verbosity: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    if verbosity:
        environment["GRPC_VERBOSITY"] = verbosity
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"{verbosity}\n"  # as it was: what a user starts inherits it
    assert ("fork" in done.stderr) == (verbosity == "INFO"), done.stderr


def test_a_channel_is_grpcs_own() -> None:
    with open_channel("127.0.0.1:1") as channel:
        assert isinstance(channel, grpc.Channel)


class Reads(grpc.GenericRpcHandler):
    """Answers every call with one reply."""

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_stream_rpc_method_handler(lambda _request, _context: iter([b"reply"]))


def read_until_refused(call: grpc.UnaryStreamMultiCallable, replies: list[list[bytes]]) -> None:
    with contextlib.suppress(grpc.RpcError):
        while True:
            replies.append(list(call(b"", timeout=5)))


def test_reads_end_when_their_server_stops() -> None:
    """Of reads that begin while it does, gRPC leaves one in three open if it may repeat them."""
    for _ in range(25):
        with ThreadPoolExecutor(2) as pool:
            server = grpc.server(pool, handlers=[Reads()])
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            server.start()
            with open_channel(address) as channel:
                call = channel.unary_stream("/switch/Read")
                replies = [list(call(b"", timeout=5))]
                reading = threading.Thread(target=read_until_refused, args=(call, replies), daemon=True)
                reading.start()
                server.stop(None).wait()
                reading.join(20)
                assert not reading.is_alive()
                assert all(one == [b"reply"] for one in replies)
