# SPDX-License-Identifier: Apache-2.0
"""Networks of this machine to measure on, and processes, one a rank, that measure there."""

import contextlib
import pickle
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from softp4.native.scratch import scratch_folder
from softp4.runtime.queueing import parse_rate
from weir.bench.case import UnavailableError
from weir.cluster import local_cluster
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.netns.namespace import gain_root
from weir.network import SINGLE, NetworkSpec, Shape
from weir.process.child import ChildError, end, log_tail, wait_for_all
from weir.process.template import Forked, shared_template
from weir.train.wirebytes import TCP_PAYLOAD, WEIR_PAYLOAD

if TYPE_CHECKING:
    from weir.bench.rank import Place

S = TypeVar("S")
T = TypeVar("T")
Start: TypeAlias = Callable[[int], tuple[list[str], dict[str, str]]]  # rank -> command prefix, environment

BRIDGED: Final = "Gloo over links: on the kernel's bridge, with the same token buckets and its offloads on"
RATES: Final = "Rates of shaped links, such as 100mbit; empty: shared memory alone."
_LOG: Final = 1500


@dataclass(frozen=True)
class Links:
    """A network to measure on.

    Attributes:
        rate: of its links in bit/s; None: as fast as the machine.
        start: how a rank is started there.
        switches: process ids.
        gloo_frame: returns the mean bytes of what rank 0 has sent over Gloo's link at a time; None: no link.
    """

    name: str
    workers: int
    rate: int | None
    start: Start
    switches: tuple[int, ...]
    gloo_frame: Callable[[], float] | None = None


@contextlib.contextmanager
def in_memory(workers: int, threads: int = 1) -> Iterator[Links]:
    """Yield shared-memory ports, where Gloo talks TCP over loopback. threads: of the switch."""
    with local_cluster(workers, threads=threads) as cluster:

        def start(rank: int) -> tuple[list[str], dict[str, str]]:
            return [], {**cluster.environment(rank), "MASTER_ADDR": "127.0.0.1"}

        name = "memory" if threads == 1 else f"memory, {threads} threads"
        yield Links(name, workers, None, start, tuple(cluster.switch_pids()))


@contextlib.contextmanager
def shaped_links(workers: int, rate: str, *, ip: bool = False, shape: Shape = SINGLE) -> Iterator[Links]:
    """Yield links of one rate between network namespaces.

    ip: Weir's workers claim their ports over IP. shape: with racks, the links between switches have the rate
    and the token buckets, too; Gloo's bridge joins all hosts.
    """
    words = f"{rate}, over IP" if ip else rate if shape.single else f"{rate}, {shape}"
    with network_cluster(workers, rate=rate, network=NetworkSpec(shape), bridged=True, ip=ip) as cluster:
        yield over_links(cluster, workers, rate, words)


def over_links(cluster: NetworkCluster, workers: int, rate: str, name: str) -> Links:
    """Return a cluster's links: Weir uses those to a switch, Gloo those to a kernel bridge beside it.

    Each rank has two links with the same token buckets in both directions. The bridge has the offloads on:
    the network that TCP is fastest on.
    """
    lab = cluster.lab

    def start(rank: int) -> tuple[list[str], dict[str, str]]:
        return lab.at_host(rank), {**cluster.environment(rank), **lab.bridged_environment()}

    def gloo_frame() -> float:
        link = lab.switch.links.find(f"bridge-{lab.interfaces[0]}")
        return link.sent_bytes / max(1, link.sent)

    return Links(name, workers, parse_rate(rate), start, tuple(cluster.switch_pids()), gloo_frame)


def every_network(
    workers: int,
    rates: Sequence[str],
    say: Callable[[str], None],
    threads: Sequence[int] = (1,),
    *,
    ip: bool = False,
    shape: Shape = SINGLE,
) -> Iterator[Links]:
    """Yield shared memory, with this many threads of the switch, and links of each rate.

    ip: each rate twice, with cables to the switch and with ports that are claimed over IP. shape: of the
    network of links.

    Links only where namespaces are available, and said if not.

    Raises:
        UnavailableError: there is nothing but links to measure on, and they are not available.
    """
    reason = gain_root() if rates else None
    for count in threads:
        with in_memory(workers, count) as links:
            yield links
    if reason is not None:
        if not threads:
            raise UnavailableError(f"shaped links: {reason}")
        say(f"shaped links not measured: {reason}")
        return
    for rate in rates:
        for over in (False, True) if ip else (False,):
            with shaped_links(workers, rate, ip=over, shape=shape) as links:
                yield links


def check_rates(rates: Sequence[str]) -> None:
    """Raise ValueError for a rate that is none."""
    for rate in rates:
        parse_rate(rate)


def least_seconds(elements: float, workers: int, rate_bps: int, *, ring: bool) -> float:
    """Return what an all-reduce of float32 values takes at the line's payload rate.

    That is its rate without the headers of full packets, from Ethernet up: of TCP segments, or of Weir's
    packets. Weir sends every value once in each direction, a ring of n over TCP 2 (n - 1) / n times.
    """
    if ring:
        return 2 * (workers - 1) / workers * 32 * elements / (rate_bps * TCP_PAYLOAD)
    return 32 * elements / (rate_bps * WEIR_PAYLOAD)


def free_port() -> int:
    """Return a TCP port that nobody listens on now (in a namespace of its own, any port is free)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def run_ranks(
    measure: "Callable[[Place, S], T]",
    spec: S,
    links: Links,
    device: str = "cpu",
    limit_s: float | None = None,
) -> list[T]:
    """Run a function of a module on each rank, and return what each has returned.

    Args:
        spec: what the function is given; it and the results are pickled.
        limit_s: seconds that it may take.

    Raises:
        ChildError: a rank failed, or took too long; with what it said.
    """
    port = free_port()
    with scratch_folder("weir-bench") as folder:
        (folder / "job").write_bytes(pickle.dumps((measure, spec, device, limit_s)))
        processes: list[Forked] = []
        logs = [folder / f"rank-{rank}.log" for rank in range(links.workers)]
        try:
            processes += (_rank(rank, links, folder, port) for rank in range(links.workers))
            if limit_s is not None:
                _wait(processes, logs, limit_s)
            wait_for_all(processes, logs)
        finally:
            end(processes)
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(links.workers)]


def _rank(rank: int, links: Links, folder: Path, port: int) -> Forked:
    prefix, environment = links.start(rank)
    rendezvous: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": links.workers, "MASTER_PORT": port}
    template = shared_template("weir.bench.rank", {}, folder / "rank-0.log")
    return template.fork(
        [str(folder / "job"), str(folder / f"{rank}.result")],
        log=folder / f"rank-{rank}.log",
        environment={**environment, **{name: str(value) for name, value in rendezvous.items()}},
        prefix=prefix,
    )


_START_S: Final = 60.0  # that ranks may take until they measure
_POLL_S: Final = 0.05


def _wait(processes: Sequence[Forked], logs: Sequence[Path], limit_s: float) -> None:
    """Wait until all have ended, or one has failed. Raises ChildError when that takes too long."""
    deadline = time.monotonic() + _START_S + limit_s
    while any(process.poll() is None for process in processes) and not any(p.poll() for p in processes):
        if time.monotonic() > deadline:
            said = (f"rank {rank}: {log_tail(log, _LOG)}" for rank, log in enumerate(logs))
            raise ChildError("\n".join([f"took more than {limit_s:g} s", *said]))
        time.sleep(_POLL_S)
