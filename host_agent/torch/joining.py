# SPDX-License-Identifier: Apache-2.0
"""The way of a group to its connection: the ranks meet, hosts are found, and each host joins the job."""

import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, get_args

from torch._C._distributed_c10d import Store

from weir.agent_service import MOST_SLOTS
from weir.agent_service.waiting import logged_wait
from weir.host_agent.collectives import bindings as collectives
from weir.host_agent.collectives.host_sum import Hosts
from weir.host_agent.compression import bindings as compression
from weir.host_agent.torch import host_channel, rendezvous
from weir.host_agent.torch.connection import Connection, Facts
from weir.host_agent.torch.host_connection import HostConnection
from weir.host_agent.torch.job_connection import JobConnection, Participant
from weir.host_agent.transport import bindings as transport

log = logging.getLogger(__name__)

LocalStep = Literal["auto", "on", "off"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")
_LIBRARIES: Final = (transport.library, collectives.library, compression.library)


def open_connection(
    store: Store,
    rank: int,
    ranks: list[int],
    group: str,
    timeout: timedelta,
    start: rendezvous.StartCluster,
    slots: int = 0,
    options: str = "",
    local: LocalStep | None = "off",
    members: rendezvous.Members | None = None,
    *,
    elastic: bool = False,
) -> Connection:
    """Join the job of a group; return when all its ranks have.

    Args:
        store: torch's, which all ranks share.
        rank: this process's place in ``ranks``.
        ranks: the members' global ranks.
        group: torch's name for the group.
        timeout: how long to wait for the others, and each reduction for progress.
        start: starts a local cluster where there is no controller.
        slots: how many of the switch's the job is to have; 0: a share of what is free.
        options: of the group, as text; all ranks must have the same.
        local: see GroupOptions; None: as WEIR_LOCAL says.
        members: words for them; None: for ranks of a group.
        elastic: have few slots, and more while much is sent; not with ``slots``.

    Raises:
        RendezvousError, AgentError, OSError: each says what is missing.
    """
    with contextlib.ExitStack() as undo:
        met, hosts, cluster = rendezvous.agree(
            store,
            ranks,
            rank,
            group,
            timeout,
            start,
            options,
            host_of(local or local_step()),
            members or rendezvous.Members(),
            _compile,
        )
        undo.callback(rendezvous.leave, met)
        if cluster is not None:
            undo.callback(cluster.stop)
        if hosts.flat:
            places = tuple((place,) for place in range(len(ranks)))
            participant = Participant(rank, len(ranks), places, met.host(ranks[rank]))
            connection: Connection = JobConnection.join(
                met, participant, cluster, store, timeout, slots, elastic=elastic
            )
        else:
            connection = _join_by_host(met, hosts, rank, ranks[rank], store, timeout, slots, elastic=elastic)
        undo.pop_all()
        return connection


def _compile() -> None:
    """Compile what every rank needs, or find it in the cache, where others of this machine may be at it."""
    waiting = logged_wait(log, lambda: "native code to be compiled, which is done once")
    with waiting, ThreadPoolExecutor() as pool:
        for loaded in [pool.submit(library) for library in _LIBRARIES]:
            loaded.result()


def _join_by_host(
    met: rendezvous.Rendezvous,
    hosts: Hosts,
    rank: int,
    global_rank: int,
    store: Store,
    timeout: timedelta,
    slots: int,
    *,
    elastic: bool,
) -> HostConnection:
    """Join as a rank of a host: the first of them for all."""
    host = int(hosts.of_rank[rank])
    here = hosts.ranks[host]
    limit_s = timeout.total_seconds()
    if rank != here[0]:
        channel = host_channel.attend(met.token, here, rank, limit_s)
        return HostConnection(hosts, rank, met.job, channel.facts, channel, None, timeout, store)
    with host_channel.gathered(met.token, here, limit_s) as sockets:
        network, facts = None, Facts(MOST_SLOTS, 0, "", met.controller)
        if len(hosts.ranks) > 1:
            participant = Participant(host, len(hosts.ranks), hosts.ranks, met.host(global_rank))
            network = JobConnection.join(met, participant, None, store, timeout, slots, elastic=elastic)
            facts = network.facts
        own = host_channel.welcome(sockets, here, facts) if sockets else None
        return HostConnection(hosts, rank, met.job, facts, own, network, timeout, store)


def local_step() -> LocalStep:
    """Return what WEIR_LOCAL says; without it, auto. ValueError for anything else than its three words."""
    wanted = os.environ.get("WEIR_LOCAL") or "auto"
    if wanted not in get_args(LocalStep):
        raise ValueError(f"WEIR_LOCAL is {wanted!r}: it must be auto, on or off, or be unset")
    return wanted  # type: ignore[return-value]


def host_of(local: LocalStep) -> str:
    """Return what ranks of one host have in common: kernel, network and user; with "auto", the name in the
    topology, too. Empty: this rank shares with nobody.
    """
    name = os.environ.get("WEIR_HOST", "")
    if local == "off" or (local == "auto" and not name) or not _BOOT_ID.exists():
        return ""
    machine = f"{_BOOT_ID.read_text(encoding='ascii').strip()} {_NETWORK.readlink()} {os.getuid()}"
    return machine if local == "on" else f"{machine} {name}"
