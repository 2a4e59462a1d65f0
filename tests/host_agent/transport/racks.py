# SPDX-License-Identifier: Apache-2.0
"""A real switch with a job on it, for tests of links: in-process, over shared memory or loopback UDP."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from weir.host_agent.transport.frames import Framer
from weir.host_agent.transport.links import Link, ShmLink, UdpLink
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.p4src import PROGRAM
from weir.simulator.entries import SwitchJob, aggregation, host_addresses
from weir.softswitch.dataplane.ports import PortLoop
from weir.softswitch.switch import Switch

T = TypeVar("T")
_jobs = count(1)


@contextlib.contextmanager
def switch_with_job(workers: int, slots: int) -> Iterator[tuple[Switch, int]]:
    """Yield a switch that aggregates for one job, and the job's id."""
    job = SwitchJob(next(_jobs), range(1, workers + 1), slot_base=0, slots=slots, group=1)
    with Switch(PROGRAM) as switch:
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
def udp_rack(workers: int, slots: int = 16) -> Iterator[list[Reducer]]:
    """Yield one reducer per worker, over kernel UDP sockets on loopback to a switch behind another socket."""
    with switch_with_job(workers, slots) as (switch, job), _loopback(switch, workers) as aggregator:
        links = [UdpLink(("127.0.0.1", 0), aggregator) for _ in range(workers)]
        made = reducers(job, links, slots)
        yield made
        for reducer in made:
            reducer.close()


@contextlib.contextmanager
def _loopback(switch: Switch, workers: int) -> Iterator[tuple[str, int]]:
    """Yield the switch behind a UDP socket: who sends as worker w is on port w + 1."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    framers = {port: Framer(host_addresses(port)) for port in range(1, workers + 1)}
    senders: dict[int, tuple[str, int]] = {}

    def serve() -> None:
        while payload := listener.recvfrom(2048):
            data, sender = payload
            if not data:
                return
            port = data[8] + 1
            senders[port] = sender
            for out_port, frame in switch.process(port, framers[port].wrap(data, 0), 0):
                if (result := framers[out_port].unwrap(frame)) and out_port in senders:
                    listener.sendto(result.payload, senders[out_port])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.sendto(b"", listener.getsockname())
        thread.join()
        listener.close()


def on_every_worker(reducers: Sequence[Reducer], action: Callable[[Reducer], T]) -> list[T]:
    """Return what ``action`` gives for each reducer, all at the same time, as in processes of their own."""
    with ThreadPoolExecutor(len(reducers)) as pool:
        return list(pool.map(action, reducers))
