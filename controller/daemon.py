# SPDX-License-Identifier: Apache-2.0
"""The controller as a process: logging, signals, ready file."""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

from softp4.native.files import write_atomically
from weir.agent_service.tls import TlsError, TlsFiles
from weir.controller.memory import StateFileError
from weir.controller.program import ProgramError
from weir.controller.server import Controller, ListenError, Settings
from weir.controller.topology import Topology, TopologyError, load_topology, with_files

log = logging.getLogger(__name__)

STARTUP_ERRORS = (TopologyError, ProgramError, TlsError, ListenError, StateFileError)


def run(
    topology: Path,
    *,
    listen: str,
    ready_file: Path | None,
    p4_dir: Path | None,
    tls: tuple[Path | None, Path | None, Path | None],
    join_timeout_s: float,
    lease_s: float,
    spine_timeout_s: float,
    state_file: Path | None,
    verbose: bool,
) -> None:
    """Run until SIGINT or SIGTERM. SIGHUP: read the topology file again and take over its ``qos`` section.

    Args:
        tls: certificate, key, authority of the agents; all None: no TLS.

    Raises:
        one of STARTUP_ERRORS: with a message for the person who started it.
    """
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
    )
    for chatty in ("grpc", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    settings = Settings(
        listen=listen,
        p4_dir=p4_dir,
        tls=TlsFiles.given(*tls),
        join_timeout_s=join_timeout_s,
        lease_s=lease_s,
        spine_timeout_s=spine_timeout_s,
        state_file=state_file,
    )
    asyncio.run(_serve(topology, settings, ready_file))


async def _serve(topology: Path, settings: Settings, ready_file: Path | None) -> None:
    controller = Controller(_read(topology), settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, _reload, controller, topology)
    await controller.start()
    try:
        if ready_file is not None:
            ready = {"address": controller.address, "pid": os.getpid()}
            write_atomically(ready_file, json.dumps(ready) + "\n")
        await controller.wait(stop)
        log.info("stopping")
    finally:
        await controller.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _read(path: Path) -> Topology:
    return with_files(load_topology(path), path)


def _reload(controller: Controller, path: Path) -> None:
    try:
        controller.reconfigure(_read(path))
    except TopologyError as error:
        log.error("%s", error)
        return
    log.info("qos of %s taken over", path)
