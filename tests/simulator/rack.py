# SPDX-License-Identifier: Apache-2.0
"""One switch and its hosts in virtual time: the real P4 program, the real transports, links with faults.

Everything that happens follows from the seed.

Example::

    rack = Rack(switch, workers=4, slots=8, seed=1, up=Faults(loss=0.1), down=Faults(loss=0.1))
    rack.submit([Work(Op.ADD, 256, lanes) for lanes in vectors])
    rack.run()                                     # each vector is the sum of all now
    rack.close()
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

from softp4.switch import Switch
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.simulator.clock import SECOND, Clock, StuckError
from weir.simulator.entries import SwitchJob, host_addresses
from weir.simulator.host import Host, Work
from weir.simulator.link import Faults, Link


class Rack:
    """A job of ``workers`` hosts on ports 1 to ``workers`` of a switch.

    The switch (with `aggregation` installed) may have served other racks: a job id, slots and group that no
    other job uses now are all it takes. ``config``: more of the hosts' TransportConfig.
    """

    def __init__(
        self,
        switch: Switch,
        *,
        workers: int,
        slots: int,
        seed: int,
        up: Faults | None = None,
        down: Faults | None = None,
        job: int = 1,
        slot_base: int = 0,
        group: int = 1,
        **config: Any,
    ) -> None:
        self.clock = Clock()
        self._switch, self._seed = switch, seed
        self._job = SwitchJob(job, range(1, workers + 1), slot_base, slots, group)
        self._job.install(switch)
        random = Random(seed)
        self.hosts: list[Host] = []
        self.up: list[Link] = []
        self.down: list[Link] = []
        for worker in range(workers):
            port = worker + 1
            place = TransportConfig(job, worker, workers, slots, **config)
            uplink = Link(self.clock, random, up or Faults(), partial(self._arrive, port))
            host = Host(self.clock, place, host_addresses(port), uplink.send)
            self.up.append(uplink)
            self.hosts.append(host)
            self.down.append(Link(self.clock, random, down or Faults(), host.receive))

    def submit(self, work: Sequence[Work]) -> None:
        """Give host i ``work[i]`` to do next."""
        for host, one in zip(self.hosts, work, strict=True):
            host.submit(one)

    def run(self, limit: float = 600.0) -> None:
        """Run until every host is done.

        Raises:
            StuckError: they are not after ``limit`` virtual seconds, or `Clock.most_events` events.
        """
        end = self.clock.now + round(limit * SECOND)
        try:
            done = self.clock.run(end, lambda: all(host.idle for host in self.hosts))
        except StuckError as error:
            raise StuckError(f"{error}: {self._describe()}") from None
        if not done:
            raise StuckError(self._describe())

    def _arrive(self, port: int, frame: bytes) -> None:
        for out_port, out_frame in self._switch.process(port, frame, self.clock.now):
            self.down[out_port - 1].send(out_frame)

    def _describe(self) -> str:
        waiting = {i: host.transport.waiting() for i, host in enumerate(self.hosts) if not host.idle}
        when = f"seed {self._seed}, at {self.clock.now / SECOND:.3f} virtual seconds"
        return f"{when}, workers wait for (slot, round): {waiting}"

    def close(self) -> None:
        """Take the job off the switch and free the transports."""
        self._job.remove(self._switch)
        for host in self.hosts:
            host.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
