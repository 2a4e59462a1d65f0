# SPDX-License-Identifier: Apache-2.0
"""The reconciler of one switch: connects, pushes the program, writes differences, and starts over when that
fails.

Runs as one asyncio task; the blocking calls run in threads and end by themselves.

A switch whose process dies is noticed at once, by its session. One that hangs, or whose network is gone, is
noticed when it is asked; where it matters, at a spine, it is asked every second.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from enum import Enum

from weir.controller.drivers import Client, Program, Queues, connect
from weir.controller.entries import SwitchState, TableEntry
from weir.controller.switch_client import Count, SwitchError
from weir.controller.sync import plan
from weir.controller.tables import admission, events, queueing, results, spraying
from weir.controller.wiring import Switch
from weir.wire.definition import Event, Treatment

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
PROBE_S = 1.0  # how often a probed switch is asked whether it is there


class ReconcilerState(Enum):
    """The states of a reconciler."""

    CONNECTING = "connecting"  # no session, or the switch does not hold what it must
    READY = "ready"
    STANDBY = "standby"  # another controller has the switch


@dataclass(frozen=True)
class Reading:
    """Counters of a switch at one moment."""

    events: dict[Event, Count] = field(default_factory=dict)
    up: dict[TableEntry, Count] = field(default_factory=dict)  # by entry of admission.workers
    down: dict[TableEntry, Count] = field(default_factory=dict)  # by entry of results.receivers
    classes: dict[TableEntry, Count] = field(default_factory=dict)  # by entry of queueing.classes
    paths: dict[TableEntry, Count] = field(default_factory=dict)  # by entry of spraying.paths
    per_hop_behaviours: dict[tuple[Treatment, int], Count] = field(default_factory=dict)  # by queue


class SwitchReconciler:
    """Makes a switch hold what is wanted, for as long as ``run`` runs.

    Args:
        election_id: which controller wins when several claim the switch.
        probed: ask the switch every second whether it is there.
    """

    def __init__(self, switch: Switch, program: Program, election_id: int, *, probed: bool = False) -> None:
        self.switch = switch
        self.program = program
        self.state = ReconcilerState.CONNECTING
        self.problem = "not tried yet"
        self.down_since: float | None = None  # of the first failure since it was as it must be
        self._probed = probed
        self._queues: Queues = ()
        self._queues_set: Queues | None = None
        self._election_id = election_id
        self._client: Client | None = None
        self._wanted = SwitchState()
        self._version = 1  # of what is wanted
        self._applied = 0  # newest version the switch is known to hold
        self._wake = asyncio.Event()
        self._settled = asyncio.Condition()
        self._stopping = False

    @property
    def wanted(self) -> SwitchState:
        """State that the switch must hold."""
        return self._wanted

    @property
    def version(self) -> int:
        """Number of the wanted state; it grows with every change."""
        return self._version

    def holds(self, version: int) -> bool:
        """Return whether the switch is known to hold the state numbered ``version``, or a newer one."""
        return self._applied >= version

    @property
    def current(self) -> bool:
        """Return whether the switch is there and holds what is wanted now."""
        return self.state is ReconcilerState.READY and self.holds(self._version)

    def want(self, state: SwitchState, queues: Queues = ()) -> None:
        """Change what the switch must hold, and how long its queues are."""
        if (state, queues) != (self._wanted, self._queues):
            self._wanted, self._queues = state, queues
            self._version += 1
            self._wake.set()

    async def settled(self, timeout_s: float) -> None:
        """Wait until the switch holds what is wanted now, or something newer.

        Raises:
            SwitchError: it does not within ``timeout_s``; the message says what is in the way.
        """
        version = self._version
        try:
            async with asyncio.timeout(timeout_s), self._settled:
                await self._settled.wait_for(lambda: self._applied >= version)
        except TimeoutError:
            raise SwitchError(self.problem or f"switch {self.switch.name} is busy") from None

    async def run(self) -> None:
        """Keep the switch as it must be, until ``stop``."""
        retry_s = FIRST_RETRY_S
        while not self._stopping:
            try:
                await self._connect()
                while not self._stopping:
                    await self._sync()
                    retry_s = FIRST_RETRY_S
                    await self._idle()
            except SwitchError as error:
                self._broken(str(error))
                await self._pause(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
            finally:
                await self._disconnect()

    def stop(self) -> None:
        """Let ``run`` end. The switch keeps what it holds."""
        self._stopping = True
        self._wake.set()

    async def read(self) -> Reading:
        """Return the counters. Raises SwitchError when the switch cannot be asked."""
        client = self._client
        if client is None or self.state is not ReconcilerState.READY:
            raise SwitchError(self.problem)
        return await asyncio.to_thread(_read, client)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to care
                loop.call_soon_threadsafe(self._wake.set)

        self._client = await asyncio.to_thread(connect, self.switch, self._election_id, changed)
        self._queues_set = None

    async def _idle(self) -> None:
        """Wait until there is something to do. The probe of a switch that does not answer raises
        SwitchError.
        """
        while not self._wake.is_set():
            try:
                async with asyncio.timeout(PROBE_S if self._probed else None):
                    await self._wake.wait()
            except TimeoutError:
                if self._client is not None:
                    await asyncio.to_thread(self._client.probe)
        self._wake.clear()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _sync(self) -> None:
        client = self._client
        if client is None or not client.alive:
            raise SwitchError(f"switch {self.switch.name} at {self.switch.grpc} ended the session")
        if not client.primary:
            if self.state is not ReconcilerState.STANDBY:
                log.warning("switch %s is now programmed by another controller", self.switch.name)
            self.state = ReconcilerState.STANDBY
            self.problem = f"another controller has taken over switch {self.switch.name}"
            self.down_since = None
            return
        version, wanted = self._version, self._wanted
        changes = await asyncio.to_thread(_apply, client, self.program, wanted)
        if self.state is not ReconcilerState.READY:
            log.info("switch %s is ready", self.switch.name)
        log.debug("switch %s: %d changes written", self.switch.name, changes)
        await self._set_queues()
        self.state, self.problem, self.down_since = ReconcilerState.READY, "", None
        async with self._settled:
            self._applied = version
            self._settled.notify_all()
        if self._version > version:
            self._wake.set()

    async def _set_queues(self) -> None:
        """Set the queues of ports. A failure is logged and left: the switch forwards all the
        same.
        """
        client, queues = self._client, self._queues
        if client is None or queues == self._queues_set or not (queues or self._queues_set):
            return
        self._queues_set = queues
        try:
            await asyncio.to_thread(client.set_queues, queues)
        except SwitchError as error:
            log.warning("%s", error)

    def _broken(self, problem: str) -> None:
        if self.down_since is None:
            self.down_since = time.monotonic()
        if problem != self.problem and not self._stopping:
            log.warning("%s; trying again", problem)
        self.state, self.problem = ReconcilerState.CONNECTING, problem

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, but not when something is wanted meanwhile."""
        self._wake.clear()
        if self._stopping:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass


def _apply(client: Client, program: Program, wanted: SwitchState) -> int:
    """Write program and entries as far as the switch lacks them; return the number of changes."""
    if client.ensure_program(program):
        log.info("switch %s was given program %s", client.switch.name, program.name)
    batches = plan(client.read(), wanted)
    client.write(batches)
    return sum(map(len, batches))


def _read(client: Client) -> Reading:
    counts = dict.fromkeys(Event, Count())
    for counter in events.COUNTERS:
        cells = client.read_counter(counter)
        for index in events.known(cells):
            counts[Event(index)] += cells[index]
    behaviours = dict.fromkeys(((t, queue) for t in Treatment for queue in range(queueing.QUEUES)), Count())
    for counter in queueing.PER_HOP_BEHAVIOURS:
        cells = client.read_counter(counter)
        for treatment, queue in behaviours:
            index = treatment * queueing.QUEUES + queue
            behaviours[treatment, queue] += cells[index] if index < len(cells) else Count()
    return Reading(
        counts,
        up=client.read_table_counts(admission.WORKERS),
        down=client.read_table_counts(results.RECEIVERS),
        classes=client.read_table_counts(queueing.CLASSES),
        paths=client.read_table_counts(spraying.PATHS),
        per_hop_behaviours=behaviours,
    )
