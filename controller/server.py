# SPDX-License-Identifier: Apache-2.0
"""The controller as a whole: it keeps switches and serves jobs until it is told to stop."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from weir.agent_service.tls import TlsFiles
from weir.controller.fabric import Fabric
from weir.controller.memory import Memory
from weir.controller.port import Port, options
from weir.controller.registry import JobRegistry
from weir.controller.service import AgentService
from weir.controller.topology import Topology, TopologyError

log = logging.getLogger(__name__)

GRACE_S = 1.0  # what calls in flight get when the service stops


class ListenError(Exception):
    """The service cannot listen at its address."""


@dataclass(frozen=True)
class Settings:
    """The settings of a controller.

    Attributes:
        listen: ``host:port`` (port 0: any free one) or ``unix:/path``.
        p4_dir: where the compiled programs are; this installation's own if None.
        tls: certificate, key and client authority; None for no TLS.
        join_timeout_s: how long a join waits for the other ranks unless it says so itself, and then, in any
            case, for the switches to be programmed.
        lease_s: how long a member may be silent before it counts as lost.
        spine_timeout_s: how long a spine may be out of reach before leaves send elsewhere.
        state_file: where running jobs are remembered over a restart; None: they stop with the controller.
    """

    listen: str = "127.0.0.1:0"
    p4_dir: Path | None = None
    tls: TlsFiles | None = None
    join_timeout_s: float = 60.0
    lease_s: float = 10.0
    spine_timeout_s: float = 2.0
    state_file: Path | None = None


class Controller:
    """One controller: ``start``, then ``stop``, on one event loop.

    Raises:
        ProgramError: a switch's program is missing or stale.
        StateFileError: the state file cannot be used.
    """

    def __init__(self, topology: Topology, settings: Settings) -> None:
        self._settings = settings
        self._topology = topology
        # A controller that starts later takes over from a controller that hangs; one that restarts, from
        # itself.
        self._fabric = Fabric(
            topology,
            settings.p4_dir,
            election_id=time.time_ns() // 1_000_000,
            spine_timeout_s=settings.spine_timeout_s,
        )
        memory = Memory(settings.state_file)
        registry = JobRegistry(self._fabric.slots(), settings.lease_s, topology)
        for job in memory.load(topology):
            adopted = registry.adopt(job, time.monotonic())
            log.info("job %r from before %s", job.name, "goes on" if adopted else "has lost its slots")
        self._fabric.update(registry.programmed())
        self._service = AgentService(topology, self._fabric, registry, memory, settings.join_timeout_s)
        self._server: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.address = settings.listen

    async def start(self) -> None:
        """Listen, and begin to program switches. ``address`` then says where the service is.

        Raises:
            ListenError: the address is in use or not this machine's.
            TlsError: a certificate cannot be used.
        """
        credentials = self._settings.tls.server_credentials() if self._settings.tls else None
        self._loop = asyncio.get_running_loop()
        self._port = Port(self._service)
        self._server = grpc.aio.server(options=options())
        self._server.add_generic_rpc_handlers((self._port.handler(),))
        self.address = self._bind(credentials)
        await self._server.start()
        self._tasks = [
            asyncio.create_task(self._fabric.run()),
            asyncio.create_task(self._service.watch()),
        ]
        log.info("listening at %s", self.address)

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait for ``stop``; whatever goes wrong inside meanwhile is raised here, rather than lost."""
        told = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([told, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        for task in done - {told}:
            task.result()

    def reconfigure(self, topology: Topology) -> None:
        """Take over the ``qos`` section, for jobs that run as well; from any thread, after ``start``.

        Raises:
            TopologyError: something else differs; then nothing is taken over.
        """
        sections = [
            name
            for name in type(topology).model_fields
            if name != "qos" and getattr(topology, name) != getattr(self._topology, name)
        ]
        if sections:
            raise TopologyError(
                f"{' and '.join(sections)} changed, but only qos may while the controller runs: nothing was "
                f"taken over; restart the controller"
            )
        self._topology = topology
        assert self._loop is not None, "not started"
        self._loop.call_soon_threadsafe(self._fabric.reconfigure, topology)

    async def stop(self) -> None:
        """End all sessions. Jobs stop, unless there is a state file for a successor to take them over."""
        await self._service.shut_down()
        await self._server.stop(GRACE_S)
        self._port.close()
        self._fabric.stop()
        fabric, watch = self._tasks
        watch.cancel()
        await asyncio.gather(fabric, return_exceptions=True)

    def _bind(self, credentials: Any) -> str:
        listen = self._settings.listen
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError:
            raise ListenError(
                f"cannot listen at {listen}: the address is in use or not this machine's"
            ) from None
        if listen.startswith("unix:"):
            # Who can open it is told ids and slots of jobs (Port), so that must be this user alone.
            Path(listen.removeprefix("unix:").removeprefix("//")).chmod(0o600)
            return listen
        return f"{listen.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def running(topology: Topology, settings: Settings | None = None) -> Iterator[Controller]:
    """Yield a controller in a thread of this process, stopped at the end of the ``with`` block."""
    controller = Controller(topology, settings or Settings())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="weir-controller")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(controller.start(), loop).result()
        try:
            yield controller
        finally:
            asyncio.run_coroutine_threadsafe(controller.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
