# SPDX-License-Identifier: Apache-2.0
"""The rendezvous of a process group: its ranks find one controller and one job through torch's store.

Rank 0 decides and publishes; the others read. Where no controller is named and all ranks are on one machine,
rank 0 has a switch and a controller started for them: the code that registered the backend says how.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from softp4.native.json_text import parse_json, parse_object, parse_record
from weir.agent_service.waiting import WaitLines, logged_wait
from weir.host_agent.collectives.host_sum import Hosts, group_hosts
from weir.host_agent.torch.busy_ranks import BusyRanks, busy
from weir.host_agent.torch.silent_store import StoreSilentError, within
from weir.host_agent.torch.store_holder import ends_with

log = logging.getLogger(__name__)

WHOLE = "init_process_group"
_LOOK_S = 0.2  # how often, at least, ranks look whether others have come, and which group they want
_CONFLICT_S = 1.0  # for all who want one to say so
_BEYOND = 32  # ranks above the greatest of our own may want a group with us, too
_VERSIONS = "do all ranks run the same version of Weir?"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LocalCluster(Protocol):
    """Switch and controller on this machine, which run (``weir.LocalCluster`` is one)."""

    @property
    def controller(self) -> str:
        """Controller's address."""

    @property
    def directory(self) -> Path:
        """Folder of its sockets, which goes with it."""

    def check(self) -> None:
        """Raise a RuntimeError that names the process, if one has ended that the others need."""

    def status(self) -> Any:
        """Return the controller's ``StatusReply``; AgentError when it cannot be asked."""

    def stop(self) -> None:
        """End both."""


StartCluster = Callable[[int], LocalCluster]
"""Start a cluster for this many workers of this machine and return it when they can join."""


@dataclass(frozen=True)
class Members:
    """The words for a group and its members, for messages.

    group: how it is made, as users call it. names: of the members; none: their ranks. remedy: what to do when
    some do not come.
    """

    group: str = "new_group"
    names: tuple[str, ...] = ()
    remedy: str = "do they run?"

    def name(self, place: int, size: int) -> str:
        """Return the words for one of ``size`` members."""
        return self.names[place] if self.names else f"rank {place} of {size}"


_RANKS = Members()


class RendezvousError(RuntimeError):
    """The ranks could not agree on a controller; the message says why and what to do."""


@dataclass(frozen=True)
class Rendezvous:
    """The controller and the job that all ranks of a group agree on.

    controller: its address; empty where none is needed. job: the job's name there. token: the job's secret.
    hosts: by global rank, the host names of a local cluster; empty when each rank knows its own.
    notice: the file that says when a local cluster has died; "" for any other.
    """

    controller: str
    job: str
    token: str
    hosts: dict[int, str]
    notice: str = ""

    def host(self, rank: int) -> str:
        """Return the name of the host that global rank ``rank``, this process, is."""
        return self.hosts.get(rank) or os.environ.get("WEIR_HOST") or f"h{rank + 1}"


@dataclass(frozen=True)
class Introduction:
    """A rank's words about itself to the others of its group.

    machine: where it is. wanted: the group, as it was asked for. host: ranks that say the same are on one
    host; empty: it is alone. clusters: its host's name in each local cluster that it is on, by controller.
    """

    machine: str
    wanted: str
    host: str
    clusters: dict[str, str]


# The local clusters that this process's groups are on, each with the process's host there: later groups of
# processes that are all on one of them use it too. Ranks tell no processes apart: groups that were made from
# stores have ranks of their own.
_local: list[tuple[Rendezvous, str]] = []


def agree(
    store: Store,
    ranks: list[int],
    rank: int,
    group: str,
    timeout: timedelta,
    start: StartCluster,
    options: str = "",
    host: str = "",
    members: Members = _RANKS,
    prepare: Callable[[], object] = lambda: None,
) -> tuple[Rendezvous, Hosts, LocalCluster | None]:
    """Return the group's rendezvous, its ranks by host, and the cluster that this process started for it and
    has to stop.

    Args:
        store: torch's, which all ranks of the group share.
        ranks: the members' global ranks.
        rank: this process's place among them.
        group: torch's name for it.
        timeout: how long to wait for the other ranks.
        start: starts a cluster, where one is needed.
        options: that the ranks must agree on, as text.
        host: ranks that say the same are on one host; empty: this one is alone.
        members: words for them.
        prepare: done before this rank meets the others, who wait for it beyond ``timeout``.

    Raises:
        RendezvousError: a rank did not come, wants another group, or no controller was found.
    """
    try:
        return _agree(store, ranks, rank, group, timeout, start, options, host, members, prepare)
    except StoreSilentError as error:
        raise RendezvousError(str(error)) from None
    except dist.DistNetworkError as error:
        raise RendezvousError(
            f"torch's store cannot be reached: {error}. Does torchrun still run, or rank 0, which holds it?"
        ) from error


def _agree(
    store: Store,
    ranks: list[int],
    rank: int,
    group: str,
    timeout: timedelta,
    start: StartCluster,
    options: str,
    host: str,
    members: Members,
    prepare: Callable[[], object],
) -> tuple[Rendezvous, Hosts, LocalCluster | None]:
    limit = timeout.total_seconds()
    # A group can be made again on the same store; every rank counts the times for itself.
    times = within(limit, lambda: store.add(f"weir/rendezvous-of/{ranks[rank]}", 1))
    attempt = f"weir/rendezvous-{times}"
    wanted = f"{members.group}({', '.join(filter(None, (str(ranks), options)))})"
    try:
        with busy(store, _busy_key(attempt, ranks[rank])):
            prepare()
    except Exception as error:
        words = json.dumps(f"{members.name(rank, len(ranks))} cannot take part: {error}")
        within(limit, lambda: store.set(_failed_key(attempt), words))
        raise
    clusters = {known.controller: own for known, own in _local}
    said = _meet(
        store, attempt, ranks, rank, Introduction(_machine(), wanted, host, clusters), timeout, members
    )
    hosts = group_hosts([one.host for one in said])
    if rank:
        return _attend(store, attempt, ranks, rank, timeout), hosts, None
    try:
        with busy(store, _busy_key(attempt, ranks[0])):
            met, cluster = _convene(said, hosts, ranks, group, start)
    except Exception as error:
        words = json.dumps({"error": str(error)})
        within(limit, lambda: store.set(attempt, words))
        raise
    within(limit, lambda: store.set(attempt, json.dumps(asdict(met))))
    return met, hosts, cluster


def leave(met: Rendezvous) -> None:
    """Forget the rendezvous of a group of this process that is closed or broken. From any thread."""
    for known in _local.copy():
        if known[0] == met:
            with contextlib.suppress(ValueError):  # another thread has done so
                _local.remove(known)
            return


def _busy_key(attempt: str, rank: int) -> str:
    """Return the key by which a global rank says that it is busy."""
    return f"{attempt}/busy/{rank}"


def _failed_key(attempt: str) -> str:
    """Return the key by which a rank says that it cannot take part."""
    return f"{attempt}/failed"


def _attend(store: Store, attempt: str, ranks: list[int], rank: int, timeout: timedelta) -> Rendezvous:
    """Return what rank 0 of ``ranks`` says of the controller to this rank of them."""
    limit = timeout.total_seconds()
    awaited = "rank 0 to say which controller to join"
    if not _wait(store, attempt, awaited, limit, _busy_key(attempt, ranks[0])):
        raise RendezvousError(f"rank 0 did not say within {limit:g} s which controller to join: does it run?")
    text = within(limit, lambda: store.get(attempt))
    try:
        if "error" in (said := parse_object(text)):
            raise RendezvousError(f"rank 0 could not find or start a controller: {said['error']}")
        met = parse_record(Rendezvous, text)
        hosts = {int(rank): str(host) for rank, host in met.hosts.items()}
    except ValueError as error:
        raise RendezvousError(
            f"rank 0 sent a message that this rank cannot decode ({error}): {_VERSIONS}"
        ) from None
    met = replace(met, hosts=hosts)
    if hosts:
        _local.append((met, met.host(ranks[rank])))
    return met


def _convene(
    said: list[Introduction], on_hosts: Hosts, ranks: list[int], group: str, start: StartCluster
) -> tuple[Rendezvous, LocalCluster | None]:
    job, token = f"{group}-{secrets.token_hex(4)}", secrets.token_hex(16)
    if address := os.environ.get("WEIR_CONTROLLER"):
        return Rendezvous(address, job, token, {}), None
    if on_hosts.single:
        return Rendezvous("", job, token, {}), None
    for known, own in reversed(_local):
        if all(known.controller in one.clusters for one in said):
            hosts = {
                member: str(one.clusters[known.controller]) for member, one in zip(ranks, said, strict=True)
            }
            met = Rendezvous(known.controller, job, token, hosts, known.notice)
            _local.append((met, own))
            return met, None
    _require_one_machine({one.machine for one in said})
    with logged_wait(log, lambda: "a local switch and controller to start: the first start compiles C"):
        cluster = start(len(ranks))
    hosts = {member: f"h{number}" for number, member in enumerate(ranks, start=1)}
    met = Rendezvous(cluster.controller, job, token, hosts, str(cluster.directory / "died"))
    _local.append((met, hosts[ranks[0]]))
    return met, cluster


def _meet(
    store: Store,
    attempt: str,
    ranks: list[int],
    rank: int,
    own: Introduction,
    timeout: timedelta,
    members: Members,
) -> list[Introduction]:
    """Wait until all members want the same group, and return what each says of itself.

    Ranks that want different ones may wait for some who never come: who sees it says so in the store.

    Raises:
        RendezvousError: they do not; or some did not come in time.
    """
    wanted = own.wanted
    keys = {member: f"{attempt}/rank/{member}" for member in ranks}
    conflict = f"{attempt}/conflict"
    began, limit = time.monotonic(), timeout.total_seconds()
    others, lines = BusyRanks(store), WaitLines(log)

    def look() -> tuple[dict[int, Introduction], bool, str]:
        """Return what the members say that are there, whether somebody has seen a conflict, and why one of
        them cannot take part.
        """
        here = [member for member, key in keys.items() if store.check([key])]
        said = {member: _said(store, keys[member], member) for member in here}
        failed = (
            str(parse_json(store.get(_failed_key(attempt)))) if store.check([_failed_key(attempt)]) else ""
        )
        return said, store.check([conflict]), failed

    within(limit, lambda: store.set(f"{attempt}/rank/{ranks[rank]}", json.dumps(asdict(own))))
    while True:
        said, conflicting, failed = within(limit, look)
        waited = time.monotonic() - began
        if conflicting or any(one.wanted != wanted for one in said.values()):
            within(limit, lambda: store.add(conflict, 1))
            time.sleep(_CONFLICT_S)
            raise RendezvousError(within(limit, lambda: _conflict(store, attempt, ranks)))
        if failed:
            raise RendezvousError(failed)
        if len(said) == len(ranks):
            return [said[member] for member in ranks]
        missing = [place for place, member in enumerate(ranks) if member not in said]
        names = [members.name(place, len(ranks)) for place in missing]
        if ranks[missing[0]] == 0 and len(missing) > 1 and members.group == WHOLE:
            # Where rank 0 makes the store for init_process_group, torch has it wait there for the others.
            names[0] += " (it may be waiting for the others)" if ends_with(store, leads=True) else ""
        busy_keys = [_busy_key(attempt, ranks[place]) for place in missing]
        if waited >= limit and not within(limit, partial(others.any, busy_keys)):
            raise RendezvousError(
                f"of {len(ranks)} ranks these did not come within {limit:g} s: {', '.join(names)}; "
                f"{members.remedy}"
            )
        lines.look(time.monotonic(), partial(", ".join, [f"{name} to come" for name in names]))
        time.sleep(_pause(waited))


def _pause(waited_s: float) -> float:
    """Return how long to wait until the next look; the store's own waits show their end in its log."""
    return min(max(waited_s / 10, 0.005), _LOOK_S)


def _said(store: Store, key: str, member: int) -> Introduction:
    """Return what a rank says of itself. RendezvousError when it is not what ``_meet`` wrote."""
    try:
        return parse_record(Introduction, store.get(key))
    except ValueError as error:
        raise RendezvousError(
            f"rank {member} sent a message that this rank cannot decode ({error}): {_VERSIONS}"
        ) from None


def _conflict(store: Store, attempt: str, ranks: list[int]) -> str:
    """Return who wants which group, as far as they have said it."""
    calls: dict[str, list[int]] = {}
    for member in range(max(ranks) + _BEYOND):
        if store.check([key := f"{attempt}/rank/{member}"]):
            calls.setdefault(_said(store, key, member).wanted, []).append(member)
    said = "; ".join(
        f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))} called {words}"
        for words, who in calls.items()
    )
    return f"ranks disagree about a group: {said}. Every rank must make the same groups in the same order."


def _require_one_machine(machines: set[str]) -> None:
    if len(machines) > 1:
        names = ", ".join(sorted(machine.split()[0] for machine in machines))
        raise RendezvousError(
            f"the ranks are on several machines ({names}) and WEIR_CONTROLLER is not set: "
            "start `weir controller` and set it to its address on every rank"
        )


def _wait(store: Store, key: str, words: str, limit: float, busy_key: str) -> bool:
    """Wait for a key of a store, saying now and then in the log for what; return whether it came.

    Args:
        words: for what is waited for.
        limit: how long to wait, in seconds; longer while somebody says by ``busy_key`` that it is busy.
    """
    began = time.monotonic()
    others, lines = BusyRanks(store), WaitLines(log)
    while not within(limit, lambda: store.check([key])):
        waited = time.monotonic() - began
        if waited >= limit and not within(limit, lambda: others.any([busy_key])):
            return False
        lines.look(time.monotonic(), lambda: words)
        time.sleep(_pause(waited))
    return True


def _machine() -> str:
    """Return this machine's name, and what tells it from another of that name."""
    boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot}"
