# SPDX-License-Identifier: Apache-2.0
"""All switches of a topology, each with its reconciler, and the choice of the spines and cores that are used.

A spine or core that has not answered for a while is given up: packets are sprayed over the others, and
running jobs leave it (controller.failover). When it is back it is programmed first; then packets are sprayed
over it again, and jobs that begin use it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from weir.controller.desired import desired_state, job_state
from weir.controller.drivers import load
from weir.controller.entries import SwitchState
from weir.controller.failover import Failover
from weir.controller.jobs import Job
from weir.controller.reconciler import ReconcilerState, SwitchReconciler
from weir.controller.switch_client import SwitchError
from weir.controller.tofino import tofino_queues, tofino_state
from weir.controller.topology import Topology
from weir.controller.wiring import Switch

log = logging.getLogger(__name__)

CHECK_S = 0.1  # how often spines are looked after


class Fabric:
    """The switches of a topology.

    Args:
        p4_dir: where the compiled programs are; this installation's own if None.
        election_id: which controller wins when several claim a switch.
        spine_timeout_s: how long a spine may be out of reach before leaves send elsewhere.

    Raises:
        ProgramError: a program is missing or stale.
    """

    def __init__(
        self, topology: Topology, p4_dir: Path | None, election_id: int, spine_timeout_s: float = 2.0
    ) -> None:
        self._topology = topology
        self._spine_timeout_s = spine_timeout_s
        self._jobs: list[Job] = []
        # By switch and job id: what the switch must hold for the job, and all that it was made from.
        self._of_jobs: dict[tuple[str, int], tuple[tuple[Any, ...], SwitchState]] = {}
        self._failover = Failover()
        self.on_failover: Callable[[], None] = lambda: None  # which spines jobs use is about to change
        self._spines = _names((*topology.spines, *topology.cores))
        self._alive = frozenset(self._spines)
        programs = {name: load(name, p4_dir) for name in {s.program for s in topology.switches}}
        self.reconcilers = {
            switch.name: SwitchReconciler(
                switch, programs[switch.program], election_id, probed=switch.name in self._spines
            )
            for switch in topology.switches
        }
        self._want()

    @property
    def topology(self) -> Topology:
        """Topology that is programmed, with the newest ``qos`` section."""
        return self._topology

    @property
    def alive(self) -> frozenset[str]:
        """Spines and cores that are not given up."""
        return self._alive

    def slots(self) -> dict[str, int]:
        """Return the number of slots of each switch."""
        return {name: reconciler.program.slots for name, reconciler in self.reconcilers.items()}

    def update(self, jobs: Iterable[Job]) -> None:
        """Make these the jobs that switches serve."""
        self._jobs = list(jobs)
        kept = {job.id for job in self._jobs}
        self._of_jobs = {key: known for key, known in self._of_jobs.items() if key[1] in kept}
        self._failover.update(self._jobs, self._alive, self._topology)
        self._want()

    def reconfigure(self, topology: Topology) -> None:
        """Take over the ``qos`` section of a topology that is the same in all else."""
        self._topology = topology
        self._of_jobs.clear()
        self._want()

    async def settled(self, switches: Iterable[str], timeout_s: float) -> None:
        """Wait until these switches hold what they must; spines and cores that are given up are not waited
        for.

        Raises:
            SwitchError: one does not within ``timeout_s``, or no spine of a pod, or no core, is left of those
            needed.
        """
        names = tuple(switches)
        await asyncio.gather(*(self._settled(name, timeout_s) for name in names))
        pods = [pod.spines for pod in self._topology.pods()]
        for kind, peers in (*(("spine", spines) for spines in pods), ("core", _names(self._topology.cores))):
            needed = [name for name in peers if name in names]
            if needed and not self._alive.intersection(needed):
                problems = "; ".join(self.reconcilers[name].problem for name in needed)
                raise SwitchError(f"no {kind} is left: {problems}")

    async def settled_if_ready(self, timeout_s: float) -> None:
        """Wait until the switches that answer hold what they must; the others are not waited for."""
        ready = [
            reconciler
            for reconciler in self.reconcilers.values()
            if reconciler.state is ReconcilerState.READY
        ]
        with contextlib.suppress(SwitchError):
            await asyncio.gather(*(reconciler.settled(timeout_s) for reconciler in ready))

    async def run(self) -> None:
        """Keep all switches as they must be, until ``stop``."""
        watch = asyncio.create_task(self._watch_spines())
        try:
            await asyncio.gather(*(reconciler.run() for reconciler in self.reconcilers.values()))
        finally:
            watch.cancel()

    def stop(self) -> None:
        """Let ``run`` end."""
        for reconciler in self.reconcilers.values():
            reconciler.stop()

    def _want(self) -> None:
        qos = self._topology.qos
        lanes = {job.id: self._topology.max_lanes(job.switches) for job in self._jobs}
        for name, reconciler in self.reconcilers.items():
            switch = reconciler.switch
            state = desired_state(self._topology, switch, self._jobs, self._alive, self._of_job)
            if switch.bfrt:
                state = tofino_state(self._topology, switch, state, lanes)
                reconciler.want(state, tofino_queues(self._topology, switch))
            else:
                reconciler.want(state, tuple(queue for queue in qos.queues if queue.switch == name))

    def _of_job(
        self, topology: Topology, switch: Switch, job: Job, alive: Collection[str] | None
    ) -> SwitchState:
        """Return the state that a switch must hold for a job, made once, as there may be hundreds of jobs."""
        made_from = (alive, job.parents, job.uplinks, tuple(job.subscribers))
        known = self._of_jobs.get((switch.name, job.id))
        if known is None or known[0] != made_from:
            known = made_from, job_state(topology, switch, job, alive)
            self._of_jobs[switch.name, job.id] = known
        return known[1]

    async def _settled(self, name: str, timeout_s: float) -> None:
        waiting = asyncio.create_task(self.reconcilers[name].settled(timeout_s))
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=CHECK_S)
                if name in self._spines and name not in self._alive:
                    return
            waiting.result()
        finally:
            waiting.cancel()

    async def _watch_spines(self) -> None:
        while self._spines:
            await asyncio.sleep(CHECK_S)
            self._look_at_spines(time.monotonic())
            self._move_jobs()

    def _look_at_spines(self, now: float) -> None:
        alive = frozenset(name for name in self._spines if self._lives(name, now))
        if alive == self._alive:
            return
        for name in self._alive - alive:
            log.warning("switch %s is given up: %s", name, self.reconcilers[name].problem)
        for name in alive - self._alive:
            log.info("switch %s is back: for jobs that begin, and packets that are not summed", name)
        for peers in (*(pod.spines for pod in self._topology.pods()), _names(self._topology.cores)):
            if peers and not alive.intersection(peers):
                log.error("none of %s is left: jobs that need one wait for theirs", ", ".join(peers))
        self._alive = alive
        self._want()

    def _move_jobs(self) -> None:
        if self._failover.fence(self._alive):
            self.on_failover()
            self._want()
        self._failover.fenced(lambda leaf: self.reconcilers[leaf].version)
        moved = self._failover.move(lambda leaf, version: self.reconcilers[leaf].holds(version))
        if moved:
            self.on_failover()
            self._want()
        for job in moved:
            log.warning("job %r is now summed by %s", job.name, ", ".join(sorted(job.uplinks or ())))

    def _lives(self, name: str, now: float) -> bool:
        """Return whether a spine may be used. One that was given up may be once it holds what it must."""
        reconciler = self.reconcilers[name]
        if name not in self._alive:
            return reconciler.current
        return reconciler.down_since is None or now - reconciler.down_since < self._spine_timeout_s


def _names(switches: Iterable[Switch]) -> tuple[str, ...]:
    return tuple(switch.name for switch in switches)
