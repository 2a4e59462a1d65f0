# SPDX-License-Identifier: Apache-2.0
"""The group of workers and servers of one job, how they find one another, and what they do next."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import numpy as np
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from weir.agent_service.waiting import logged_wait
from weir.host_agent.collectives.operation import Call
from weir.host_agent.parameter_server.commands import COMMAND_LANES, Command, pack, rest_of, unpack
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.joining import open_connection
from weir.host_agent.torch.rendezvous import Members, RendezvousError, StartCluster
from weir.host_agent.torch.store_holder import holds
from weir.host_agent.torch.work import QueuedWork, submit
from weir.wire.definition import Op

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT: Final = timedelta(minutes=30)
"""Torch's own default: how long to wait for the others, and an operation for progress."""

_PREFIX: Final = "weir/parameter-server"
_TERMS: Final = "terms"
_CARE: Final = 31  # bits of the first lane of a command
_MASKS: Final = 8


@dataclass(frozen=True)
class Announcement:
    """The next operation of all members.

    careful: some member has a gradient that is not finite. mask_block: the finest that some server asks for;
    None: none does.
    """

    command: Command
    careful: bool = False
    mask_block: int | None = None


_start: list[StartCluster] = []


def register(start: StartCluster) -> None:
    """Say how a local cluster is started, for jobs that no controller was named for."""
    _start[:] = [start]


def open_store(rendezvous: str | None, *, leads: bool, timeout: timedelta = TIMEOUT) -> Store:
    """Return the store through which workers and servers find one another.

    Args:
        rendezvous: ``tcp://host:port`` or ``file:///path``; None: WEIR_RENDEZVOUS, else MASTER_ADDR and
            MASTER_PORT, which torchrun sets.
        leads: this process is worker 0, which holds a TCP store unless torchrun does.
        timeout: how long to wait for it.

    Raises:
        RendezvousError: none is named, or nobody answers.
    """
    where = rendezvous or os.environ.get("WEIR_RENDEZVOUS")
    if not where and "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if not where:
        raise RendezvousError(
            "where do workers and servers meet? Set WEIR_RENDEZVOUS to tcp://host:port or file:///path on "
            "all of them, or MASTER_ADDR and MASTER_PORT as torchrun does"
        )
    url = urlsplit(where)
    if url.scheme == "file" and url.path:
        return PrefixStore(_PREFIX, FileStore(url.path))
    if url.scheme != "tcp" or not url.hostname or not url.port:
        raise RendezvousError(f"rendezvous {where!r} is neither tcp://host:port nor file:///path")
    try:
        with logged_wait(log, lambda: f"the store at {where}, which worker 0 holds unless torchrun does"):
            store = TCPStore(
                url.hostname,
                url.port,
                is_master=holds(leads=leads),
                timeout=timeout,
                wait_for_workers=False,
                multi_tenant=True,
            )
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(f"no store at {where}: {error}") from error
    return PrefixStore(_PREFIX, store)


def publish(store: Store, terms: Terms) -> None:
    """Say the terms to the servers, which wait for them."""
    store.set(_TERMS, terms.to_json())


def await_word(store: Store, key: str, what: str, question: str, timeout: timedelta) -> bytes:
    """Return the value that worker 0 writes into the store.

    Args:
        what: the value means, as text.
        question: for anyone who waits in vain.

    Raises:
        RendezvousError: worker 0 has written nothing within the timeout.
    """
    try:
        with logged_wait(log, lambda: f"worker 0 to say {what}"):
            store.wait([key], timeout)
    except RuntimeError as error:
        raise RendezvousError(
            f"worker 0 did not say within {timeout.total_seconds():g} s {what}: {question}"
        ) from error
    return store.get(key)


def await_terms(store: Store, timeout: timedelta = TIMEOUT) -> Terms:
    """Return the terms that worker 0 says. RendezvousError when it does not in time."""
    question = "does the training run, with the same rendezvous?"
    said = await_word(store, _TERMS, "which model to serve", question, timeout)
    try:
        return Terms.from_json(said.decode())
    except ValueError as error:
        raise RendezvousError(
            f"worker 0 sent a message that this server cannot decode ({error}): do both run the same "
            f"version of Weir?"
        ) from None


def members_of(terms: Terms) -> Members:
    """Return the words for the workers and servers of a job."""
    workers = [f"worker {worker}" for worker in range(terms.workers)]
    servers = [f"server {server} (rank {terms.workers + server})" for server in range(terms.servers)]
    remedy = "every worker makes a ParameterServer, every server is started by `weir server`"
    return Members("parameter_server", (*workers, *servers), remedy)


class JobGroup:
    """One member's place among the workers and servers of a job.

    Args:
        store: of ``open_store``.
        rank: this member's: workers come first, then servers.
        terms: of the job.
        timeout: how long to wait for the others, and an operation for progress.

    Attributes:
        connection: the communicator of all members, workers and servers.

    Raises:
        RendezvousError, AgentError, OSError: each says what is missing.
    """

    def __init__(self, store: Store, rank: int, terms: Terms, timeout: timedelta = TIMEOUT) -> None:
        self.terms, self.rank = terms, rank
        self.size = terms.workers + terms.servers
        self.connection = open_connection(
            store,
            rank,
            list(range(self.size)),
            "parameter-server",
            timeout,
            _start_cluster,
            members=members_of(terms),
        )

    @property
    def slots(self) -> int:
        """Slots of the job."""
        return self.connection.facts.slot_count

    def submit(self, work: Callable[[], Any]) -> QueuedWork:
        """Queue ``work``, which reduces by ``run_now``, behind the group's other operations."""
        return submit(self.connection.operations, lambda: self.connection.attempt(work))

    def run_now(self, name: str, facts: tuple[Any, ...], work: Callable[[], T]) -> T:
        """Do an operation of all members, here and now; to be called by what was submitted.

        name, facts: of the operation, the same on all members.
        """
        return self.connection.run_call(Call(name, facts, tuple(map(str, facts))), work)

    def wait(self, handle: QueuedWork) -> Any:
        """Return the result of what was submitted. Raises what that raised."""
        try:
            handle.wait()
        except GroupBrokenError as error:
            raise GroupBrokenError(f"{error} ({self._roles()})") from None
        return handle.result()

    def run(self, name: str, facts: tuple[Any, ...], work: Callable[[], T]) -> T:
        """Do an operation of all members, in the order of the group's operations, and return its result.

        name, facts: of the operation, the same on all members.
        """
        result: T = self.wait(self.submit(lambda: self.run_now(name, facts, work)))
        return result

    def _roles(self) -> str:
        """Return which ranks are what."""
        last = self.size - 1
        servers = (
            f"{self.terms.workers} to {last} servers" if self.terms.servers > 1 else f"{last} is the server"
        )
        return f"ranks 0 to {self.terms.workers - 1} are workers, {servers}"

    def announce(
        self, command: Command | None = None, *, careful: bool = False, mask_block: int | None = None
    ) -> Announcement:
        """Say what comes next, as worker 0, or hear it; all members call this.

        careful: ask for care. mask_block: ask for masks of this many elements a bit, a power of two.
        """
        found: Announcement = self.wait(self.submit(lambda: self.announced(command, careful, mask_block)))
        return found

    def announced(
        self, command: Command | None = None, careful: bool = False, mask_block: int | None = None
    ) -> Announcement:
        """Announce here and now; to be called by what was submitted."""
        return self.run_now(
            "weir.parameter_server.next", (), lambda: self._announced(command, careful, mask_block)
        )

    def _announced(self, command: Command | None, careful: bool, mask_block: int | None) -> Announcement:
        communicator = self.connection
        first, rest = np.zeros(COMMAND_LANES, np.uint32), np.empty(0, np.uint32)
        if command is not None:
            first, rest = pack(command)
        first[0] |= careful << _CARE
        if mask_block is not None:
            first[0] |= mask_block << _MASKS
        communicator.reduce_vector(first, Op.OR)
        said = int(first[0])
        first[0] = said & ((1 << _MASKS) - 1)
        masks = (said & ((1 << _CARE) - 1)) >> _MASKS
        if rest.size != rest_of(first):
            rest = np.zeros(rest_of(first), np.uint32)
        communicator.reduce_vector(rest, Op.OR)
        return Announcement(unpack(first, rest), bool(said >> _CARE), masks & -masks or None)

    def close(self) -> None:
        """Leave the job."""
        self.connection.close()


def _start_cluster(members: int) -> Any:
    if not _start:
        raise RendezvousError("no controller is named (WEIR_CONTROLLER) and nothing can start one")
    return _start[0](members)
