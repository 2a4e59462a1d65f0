# SPDX-License-Identifier: Apache-2.0
"""The same compiled program behind real links: AF_PACKET switch, agents on kernel UDP sockets, captured.

Hosts are network namespaces; nothing is shared but the controller's Unix socket.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from tests.harness.effort import effort
from tests.harness.lab import AGGREGATION_IP
from weir.controller.wiring import Target
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.wire.definition import UDP_PORT, PacketType
from weir.wire.scapy_layer import Weir

pytestmark = pytest.mark.root

WORKERS = effort(2, 3)
WORKER = """
import os, sys
import numpy as np
import torch, torch.distributed as dist
import weir.torch
dist.init_process_group("weir", init_method="tcp://10.0.0.1:29511",
                        rank=int(sys.argv[1]), world_size=int(sys.argv[2]))
try:
    rank = dist.get_rank()
    dense = torch.arange(5000, dtype=torch.int32) * (rank + 1)
    dist.all_reduce(dense)
    sparse = torch.zeros(100_000)
    sparse[rank * 9000 : rank * 9000 + 300] = rank + 0.5   # blocks that only one rank has, and shared ones
    sparse[50_000:50_500] = 0.25
    dist.all_reduce(sparse)
    words = [None] * dist.get_world_size()
    dist.all_gather_object(words, f"rank {rank}")
    np.savez(sys.argv[3], dense=dense.numpy(), sparse=sparse.numpy())
    print(words)
finally:
    dist.destroy_process_group()
"""
CAPTURE = """
import select, socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
tap.bind(("eth0", 0))
print("on", flush=True)
while True:
    ready, _, _ = select.select([tap, sys.stdin], [], [])
    if tap in ready:
        print(tap.recv(2048).hex(), flush=True)
    elif not sys.stdin.read(1):
        break
"""


class Capture:
    """Everything that crosses a host's link, both ways."""

    def __init__(self, host: list[str]) -> None:
        self._process = subprocess.Popen(
            [*host, sys.executable, "-c", CAPTURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "on\n"
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._lines.extend, args=(self._process.stdout,))
        self._reader.start()

    def end(self) -> list[Ether]:
        assert self._process.stdin
        self._process.stdin.close()
        self._reader.join(30)
        assert self._process.wait(30) == 0
        return [Ether(bytes.fromhex(line)) for line in self._lines]


@pytest.mark.parametrize("switch", ["soft", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_workers_on_udp_sockets_are_summed_by_the_program(
    switch: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTP4_BATCHES", "off")  # a capture shows a GSO batch as one packet
    with network_cluster(WORKERS, switch=switch) as cluster:
        captures = [Capture(cluster.lab.at_host(rank)) for rank in range(WORKERS)]
        workers = [start(cluster, rank, tmp_path) for rank in range(WORKERS)]
        said = [worker.communicate(timeout=120)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * WORKERS, "\n".join(said)
        # An ICMP error, to a result that comes after a socket was closed, quotes one.
        frames = [[f for f in capture.end() if UDP in f and Weir in f] for capture in captures]
    results_are_right(tmp_path)
    for rank, seen in enumerate(frames):
        packets_are_right(rank, seen)
    results = [{_round(f): bytes(f[Weir])[9:] for f in seen if _is(f, PacketType.RESULT)} for seen in frames]
    assert all(one == results[0] for one in results)  # but for the receiver, everybody gets the same bytes


@pytest.mark.long
def test_the_same_in_batches(tmp_path: Path) -> None:
    with network_cluster(WORKERS) as cluster:
        workers = [start(cluster, rank, tmp_path) for rank in range(WORKERS)]
        said = [worker.communicate(timeout=120)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * WORKERS, "\n".join(said)
    results_are_right(tmp_path)


def start(cluster: NetworkCluster, rank: int, folder: Path) -> subprocess.Popen[str]:
    arguments = [str(rank), str(WORKERS), str(folder / f"{rank}.npz")]
    return subprocess.Popen(
        [*cluster.lab.at_host(rank), sys.executable, "-c", WORKER, *arguments],
        env={**os.environ, **cluster.environment(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results_are_right(folder: Path) -> None:
    got = [np.load(folder / f"{rank}.npz") for rank in range(WORKERS)]
    sparse = np.zeros((WORKERS, 100_000), np.float32)
    for rank in range(WORKERS):
        sparse[rank, rank * 9000 : rank * 9000 + 300] = rank + 0.5
        sparse[rank, 50_000:50_500] = 0.25
    for archive in got:
        np.testing.assert_array_equal(archive["dense"], np.arange(5000) * sum(range(1, WORKERS + 1)))
        np.testing.assert_array_equal(archive["sparse"], sparse.sum(0))


def packets_are_right(rank: int, frames: list[Ether]) -> None:
    """Contributions of this worker and nobody else's; one result for each; all as protocol.md says."""
    host = f"10.0.0.{rank + 1}"
    sent = [frame for frame in frames if _is(frame, PacketType.CONTRIBUTION)]
    results = [frame for frame in frames if _is(frame, PacketType.RESULT)]
    assert sent
    assert len(sent) + len(results) == len(frames)
    assert {_round(frame) for frame in sent} == {_round(frame) for frame in results}
    for frame in sent:
        assert (frame[IP].src, frame[IP].dst, frame[UDP].dport) == (host, AGGREGATION_IP, UDP_PORT)
        assert frame[Weir].worker == rank
        assert frame[Weir].included == 0
    for frame in results:
        assert (frame[IP].src, frame[IP].dst, frame[UDP].sport) == (AGGREGATION_IP, host, UDP_PORT)
        assert frame[Weir].worker == rank
        assert frame[UDP].chksum == 0
        assert _checksum_is_right(frame[IP])


def _checksum_is_right(packet: IP) -> bool:
    fresh = packet.copy()
    del fresh.chksum
    return bool(IP(bytes(fresh)).chksum == packet.chksum)


def _is(frame: Ether, kind: PacketType) -> bool:
    return Weir in frame and frame[Weir].type == kind


def _round(frame: Ether) -> tuple[int, int, int]:
    return (frame[Weir].job, frame[Weir].slot, frame[Weir].round)
