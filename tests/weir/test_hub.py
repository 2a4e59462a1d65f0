# SPDX-License-Identifier: Apache-2.0
"""A hub admits workers over IP, says how to join, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from softp4.native.claims import port_key, read_secret
from tests.harness import certificates
from tests.harness.ports import free_port, udp_ports
from tests.harness.processes import children, wait_until_gone
from weir.agent_service import MOST_SLOTS
from weir.agent_service.client import AgentClient
from weir.agent_service.tls import TlsFiles
from weir.cluster import ClusterError
from weir.host_agent.torch.job_connection import transport_config
from weir.host_agent.torch.link_choice import bind_udp, choose_port
from weir.host_agent.transport.growth import slots_for
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.slot_transport import Congestion
from weir.hub import Hub
from weir.wire.definition import Op

WORKERS = 2


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    tcp, udp = free_port(), udp_ports(WORKERS)
    made = Hub(WORKERS, listen=f"127.0.0.1:{tcp}", udp=udp)
    made.start()
    yield made
    made.stop()


def weir(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "weir", *words], capture_output=True, text=True, check=False)


def step(hub: Hub, job: str, rank: int, value: int) -> set[int]:
    """Join a job at host rank + 1 of the hub, sum a vector of this value, leave; return the sum's values."""
    udp = bind_udp(None)
    assert udp is not None
    with AgentClient(hub.controller) as client:
        membership = client.join(
            job=job, size=WORKERS, rank=rank, token="t", host=f"h{rank + 1}", udp_port=udp.port, slots=200
        )
        claimed = membership.claimed
        assert claimed is not None
        assert (claimed.host, claimed.udp_port) == ("127.0.0.1", hub.udp_ports[rank])
        assert claimed.key == port_key(read_secret(hub.directory / "secret"), membership.switch_port)
        assert claimed.key.hex() not in repr(membership)
        port = choose_port(membership, None, udp)
        assert port.congestion is Congestion.PATH
        config = transport_config(membership, keep=port.outlives_switch, congestion=port.congestion)
        with Reducer(port.link, config) as reducer:
            vector = np.full(100_000, value, np.uint32)
            reducer.reduce_blocks(vector, Op.ADD)
            assert 0 < reducer.round_trip < 10
        port.release()
        client.leave()
    return set(vector.tolist())


def test_workers_sum_through_a_hub(hub: Hub) -> None:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda rank: step(hub, "sum", rank, rank + 1), range(WORKERS)))
    assert found == [{3}, {3}]


def test_a_worker_that_leaves_between_steps_makes_room_for_another(hub: Hub) -> None:
    """One worker stays; in each step the other one is new, and claims the port that the last one had."""

    def stays() -> list[set[int]]:
        return [step(hub, f"step{number}", 0, 1) for number in range(3)]

    def comes_and_goes() -> list[set[int]]:
        return [step(hub, f"step{number}", 1, 10 + number) for number in range(3)]

    with ThreadPoolExecutor() as pool:
        kept, new = pool.submit(stays), pool.submit(comes_and_goes)
        assert kept.result() == new.result() == [{11}, {12}, {13}]


def test_a_job_gets_more_slots_for_a_long_path(hub: Hub) -> None:
    def slots(rank: int) -> int:
        udp = bind_udp(None)
        assert udp is not None
        with closing(udp), AgentClient(hub.controller) as client:
            wanted = slots_for(0.05)
            membership = client.join(
                job="long",
                size=WORKERS,
                rank=rank,
                token="t",
                host=f"h{rank + 1}",
                udp_port=udp.port,
                slots=wanted,
                revocable=True,
            )
            client.leave()
            assert membership.slot_count == wanted > MOST_SLOTS
            return membership.slot_count

    with ThreadPoolExecutor() as pool:
        assert len(set(pool.map(slots, range(WORKERS)))) == 1


def test_join_checks_the_path_and_prints_what_workers_need(hub: Hub) -> None:
    said = weir("join", hub.controller)
    assert said.returncode == 0, said.stderr
    assert f"export WEIR_CONTROLLER={hub.controller}" in said.stdout
    for rank, port in enumerate(hub.udp_ports):
        assert re.search(rf"h{rank + 1} .*{port} .*\d ms", said.stdout)


def test_with_tls_only_workers_with_a_certificate_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path)
    tcp, udp = free_port(), udp_ports(WORKERS)
    server = TlsFiles(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    secured = Hub(WORKERS, listen=f"127.0.0.1:{tcp}", udp=udp, tls=server)
    secured.start()
    try:
        refused = weir("join", secured.controller)
        assert refused.returncode == 1 and "do both sides use TLS" in refused.stderr
        for name, file in (("CERT", "client.pem"), ("KEY", "client.key"), ("CA", "ca.pem")):
            monkeypatch.setenv(f"WEIR_TLS_{name}", str(tmp_path / file))
        assert weir("join", secured.controller).returncode == 0
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda rank: step(secured, "tls", rank, rank + 1), range(WORKERS)))
        assert found == [{3}, {3}]
    finally:
        secured.stop()


def test_join_names_the_ports_that_are_silent(hub: Hub) -> None:
    (switch,) = [pid for pid, line in children(os.getpid()).items() if "softp4" in line]
    os.kill(switch, signal.SIGSTOP)
    try:
        said = weir("join", hub.controller)
    finally:
        os.kill(switch, signal.SIGCONT)
    assert said.returncode == 1
    assert f"no answer from UDP {hub.udp_ports[0]}, {hub.udp_ports[1]}: do the firewalls" in said.stderr


def test_ports_are_shown_and_the_secret_is_this_users(hub: Hub) -> None:
    (switch,) = hub.status().switches
    assert [(port.claimed.udp_port, port.claimed.key) for port in switch.ports] == [
        (port, b"") for port in hub.udp_ports
    ]
    assert (hub.directory / "secret").stat().st_mode & 0o777 == 0o600


def test_a_hub_that_is_interrupted_leaves_nothing() -> None:
    tcp, udp = free_port(), udp_ports(WORKERS)
    words = ["hub", "--workers", str(WORKERS), "--listen", f"127.0.0.1:{tcp}", "--udp", str(udp)]
    process = subprocess.Popen(
        [sys.executable, "-m", "weir", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    while "export" not in said:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        said += line
    assert f"open TCP {tcp} and UDP {udp} to {udp + 1}." in said
    assert f"export WEIR_CONTROLLER=127.0.0.1:{tcp}" in said
    processes = children(process.pid)
    assert len(processes) == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    wait_until_gone(*processes)


def test_an_address_in_use_is_said(hub: Hub) -> None:
    other = Hub(1, listen=f"127.0.0.1:{free_port()}", udp=hub.udp_ports[0])
    with pytest.raises(ClusterError, match=f"claimed by key at udp 127.0.0.1:{hub.udp_ports[0]}"):
        other.start()


@pytest.mark.parametrize(
    ("listen", "udp", "message"),
    [
        ("9600", 9701, "'9600' is no address: write HOST:PORT"),
        ("localhost:", 9701, "is no address"),
        ("0.0.0.0:9600", 9701, "0.0.0.0:9600: name the one address at which workers reach"),
        ("[::]:9600", 9701, "name the one address"),
        ("localhost:9600", 65535, "2 UDP ports from 65535 on: ports are 1 to 65535"),
    ],
)
def test_what_cannot_be(listen: str, udp: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Hub(WORKERS, listen=listen, udp=udp)
