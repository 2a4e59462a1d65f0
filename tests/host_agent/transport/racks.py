# SPDX-License-Identifier: Apache-2.0
"""A real switch with a job on it, for tests of links: in-process, over shared memory or loopback UDP."""

import contextlib
import itertools
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from softp4.dataplane.ports import PortLoop
from softp4.switch import Switch
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.frames import Framer
from weir.host_agent.transport.links import Link, ShmLink, UdpLink
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.p4src import PROGRAM
from weir.simulator.entries import SwitchJob, aggregation, host_addresses
from weir.wire.definition import Flag

_SOL_UDP, _UDP_SEGMENT = 17, 103
T = TypeVar("T")
_jobs = itertools.count(1)


@contextlib.contextmanager
def switch_with_job(workers: int, slots: int, program: Path = PROGRAM) -> Iterator[tuple[Switch, int]]:
    """Yield a switch that aggregates for one job, and the job's id."""
    job = SwitchJob(next(_jobs), range(1, workers + 1), slot_base=0, slots=slots, group=1)
    with Switch(program) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        job.install(switch)
        yield switch, job.job


def reducers(
    job: int,
    links: Sequence[Link],
    slots: int,
    timeout_s: float = 30.0,
    timers: Mapping[str, Any] | None = None,
) -> list[Reducer]:
    return [
        Reducer(link, TransportConfig(job, worker, len(links), slots, **(timers or {})), timeout_s=timeout_s)
        for worker, link in enumerate(links)
    ]


@contextlib.contextmanager
def shm_rack(
    directory: Path,
    workers: int,
    slots: int = 16,
    timeout_s: float = 30.0,
    timers: Mapping[str, Any] | None = None,
) -> Iterator[list[Reducer]]:
    """Yield one reducer per worker, over shared-memory ports. ``timers``: those of TransportConfig to
    change.
    """
    with switch_with_job(workers, slots) as (switch, job), PortLoop() as loop:
        for port in range(1, workers + 1):
            loop.add_shm(port, directory)
        loop.set_switch(switch)
        loop.start()
        links = [ShmLink(directory, port, host_addresses(port)) for port in range(1, workers + 1)]
        made = reducers(job, links, slots, timeout_s, timers)
        yield made
        for reducer in made:
            reducer.close()


@contextlib.contextmanager
def udp_rack(workers: int, slots: int = 16, disorder: random.Random | None = None) -> Iterator[list[Reducer]]:
    """Yield one reducer per worker, over kernel UDP sockets on loopback to a switch behind another socket.

    The switch takes what waits there together, and its results leave as batches where they are alike. With
    ``disorder``, packets of either direction are lost, doubled, exchanged and trimmed.
    """
    with switch_with_job(workers, slots) as (switch, job), _loopback(switch, workers, disorder) as aggregator:
        links = [UdpLink(("127.0.0.1", 0), aggregator) for _ in range(workers)]
        made = reducers(job, links, slots)
        yield made
        for reducer in made:
            reducer.close()


@contextlib.contextmanager
def _loopback(switch: Switch, workers: int, disorder: random.Random | None) -> Iterator[tuple[str, int]]:
    """Yield the switch behind a UDP socket: who sends as worker w is on port w + 1."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    framers = {port: Framer(host_addresses(port)) for port in range(1, workers + 1)}
    senders: dict[int, tuple[str, int]] = {}

    def serve() -> None:
        while True:
            came = [listener.recvfrom(2048)]
            with contextlib.suppress(BlockingIOError):
                while len(came) < 256:
                    came.append(listener.recvfrom(2048, socket.MSG_DONTWAIT))
            if not all(data for data, _ in came):
                return
            results: dict[int, list[bytes]] = {}
            for data, sender in _disturb(came, disorder):
                port = data[8] + 1
                senders[port] = sender
                for out_port, frame in switch.process(port, framers[port].wrap(_trim(data, disorder), 0), 0):
                    if (result := framers[out_port].unwrap(frame)) and out_port in senders:
                        results.setdefault(out_port, []).append(result.payload)
            for out_port, payloads in results.items():
                _send_in_batches(listener, _disturb(payloads, disorder), senders[out_port])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.sendto(b"", listener.getsockname())
        thread.join()
        listener.close()


def _disturb(packets: list[T], disorder: random.Random | None) -> list[T]:
    """Return them with some lost, some doubled, and some exchanged with those that come after them."""
    if disorder is None:
        return packets
    kept = [packet for packet in packets for _ in range(disorder.choices((0, 1, 2), (3, 94, 3))[0])]
    for at in range(1, len(kept)):
        if disorder.random() < 0.05:
            kept[at - 1], kept[at] = kept[at], kept[at - 1]
    return kept


def _trim(payload: bytes, disorder: random.Random | None) -> bytes:
    """Return a contribution, perhaps with its lanes cut off."""
    if disorder is None or disorder.random() > 0.02:
        return payload
    packet = Packet.decode(payload)
    return (
        replace(packet, flags=packet.flags | Flag.TRIMMED, groups={}).encode() if packet.groups else payload
    )


def _send_in_batches(end: socket.socket, payloads: list[bytes], to: tuple[str, int]) -> None:
    for size, alike in itertools.groupby(payloads, len):
        while together := b"".join(itertools.islice(alike, 40)):
            end.sendmsg([together], [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", size))], 0, to)


def on_every_worker(reducers: Sequence[Reducer], action: Callable[[Reducer], T]) -> list[T]:
    """Return what ``action`` gives for each reducer, all at the same time, as in processes of their own."""
    with ThreadPoolExecutor(len(reducers)) as pool:
        return list(pool.map(action, reducers))
