# SPDX-License-Identifier: Apache-2.0
"""``weir server``: one parameter server, as a process of its own."""

import logging
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.host_agent.torch.parameter_server.flow_server import FlowServer
    from weir.host_agent.torch.parameter_server.slot_server import SlotServer


def server(
    *,
    index: Annotated[
        int, typer.Option(min=0, help="Number of this server in the job, from 0; each server has a shard.")
    ] = 0,
    rendezvous: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Rendezvous of workers and servers: tcp://host:port or file:///path. Default: "
            "WEIR_RENDEZVOUS, or MASTER_ADDR and MASTER_PORT from torchrun.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the state of an asynchronous server, one folder per server. A restarted "
            "server continues from it, even after kill -9.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Time to wait for the other processes, and for progress of each exchange."
        ),
    ] = 1800.0,
) -> None:
    """Run a parameter server: keep a shard of a model, and step it with the gradients that workers push.

    The server waits for the training script, whose weir.torch.ParameterServer names the model and the
    optimizer, and ends with it. WEIR_CONTROLLER names the controller, and WEIR_HOST this host in its
    topology; default: h<number of workers + index + 1>. See docs/guides/parameter-server.md.
    """
    import weir.torch
    from weir.agent_service.client import AgentError
    from weir.host_agent.parameter_server.journal import JournalError
    from weir.host_agent.torch.rendezvous import RendezvousError
    from weir.host_agent.transport.links import TransportTimeout

    try:
        found = make(rendezvous, index, timedelta(seconds=timeout), state)
        # So that a server that is stopped has the time to tell its workers. Before, it waits in torch's C++,
        # where Python handles no signal, and there is nobody to tell.
        signal.signal(signal.SIGTERM, _stop)
        found.run()
    except (
        RendezvousError,
        AgentError,
        JournalError,
        TransportTimeout,
        weir.torch.GroupBrokenError,
        ValueError,
        OSError,
    ) as error:
        typer.echo(f"weir server: {error}", err=True)
        raise typer.Exit(1) from None


def _stop(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def serve(
    rendezvous: str | None, index: int, timeout: timedelta | None = None, state: Path | None = None
) -> None:
    """Be a server until the job ends, and tell the log of it; errors as of ``make_server`` and ``run``."""
    make(rendezvous, index, timeout, state).run()


def make(
    rendezvous: str | None, index: int, timeout: timedelta | None = None, state: Path | None = None
) -> "SlotServer | FlowServer":
    """Return the server that ``serve`` is, when worker 0 has said what there is to serve."""
    from weir.host_agent.torch.parameter_server.job_group import TIMEOUT, open_store
    from weir.host_agent.torch.parameter_server.serve import make_server

    logging.basicConfig(format="%(message)s")
    logging.getLogger("weir.host_agent.torch.parameter_server").setLevel(logging.INFO)
    limit = timeout or TIMEOUT
    return make_server(open_store(rendezvous, leads=False, timeout=limit), index, limit, state)
