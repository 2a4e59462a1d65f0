# SPDX-License-Identifier: Apache-2.0
"""All switches of a topology, each with its keeper."""

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from controller.desired import desired_state
from controller.jobs import Job
from controller.keeper import KeeperState, SwitchKeeper
from controller.program import load_program
from controller.switch_client import SwitchError
from controller.topology import Topology


class Fabric:
    """The switches of a topology.

    Args:
        p4_dir: where the compiled programs are; this installation's own if None.
        election_id: which controller wins when several claim a switch.

    Raises:
        ProgramError: a program is missing or stale.
    """

    def __init__(self, topology: Topology, p4_dir: Path | None, election_id: int) -> None:
        self._topology = topology
        programs = {name: load_program(name, p4_dir) for name in {s.program for s in topology.switches}}
        self.keepers = {
            switch.name: SwitchKeeper(switch, programs[switch.program], election_id)
            for switch in topology.switches
        }
        self.update(())

    def slots(self) -> dict[str, int]:
        """Number of slots of each switch."""
        return {name: keeper.program.slots for name, keeper in self.keepers.items()}

    def update(self, jobs: Iterable[Job]) -> None:
        """Make these the jobs that switches serve."""
        jobs = list(jobs)
        for keeper in self.keepers.values():
            keeper.want(desired_state(self._topology, keeper.switch, jobs))

    async def settled_if_ready(self, timeout_s: float) -> None:
        """Wait until the switches that answer hold what they must; the others are not waited for."""
        ready = [keeper for keeper in self.keepers.values() if keeper.state is KeeperState.READY]
        with contextlib.suppress(SwitchError):
            await asyncio.gather(*(keeper.settled(timeout_s) for keeper in ready))

    async def run(self) -> None:
        """Keep all switches, until ``stop``."""
        await asyncio.gather(*(keeper.run() for keeper in self.keepers.values()))

    def stop(self) -> None:
        """Let ``run`` end."""
        for keeper in self.keepers.values():
            keeper.stop()
