# SPDX-License-Identifier: Apache-2.0
"""The server that a job's terms ask for."""

from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import Store

from weir.host_agent.torch.parameter_server.flow_server import FlowServer
from weir.host_agent.torch.parameter_server.job_group import TIMEOUT, await_terms
from weir.host_agent.torch.parameter_server.slot_server import SlotServer
from weir.host_agent.torch.parameter_server.stall import telling


def make_server(
    store: Store, index: int, timeout: timedelta = TIMEOUT, state: Path | None = None
) -> SlotServer | FlowServer:
    """Wait for worker 0 to say the terms, and return the server, whose ``run`` serves until the job's end.

    state: folder for what a server must not forget whose pushes travel by flows; others have none.

    Raises:
        ValueError: the job has not this many servers.
        RendezvousError, AgentError, JournalError: each says what is missing.
    """
    terms = await_terms(store, timeout)
    if index >= terms.servers:
        raise ValueError(f"server {index}: the workers wait for {terms.servers}, from 0")
    with telling(store, index):
        if terms.in_switches:
            return SlotServer(store, index, timeout)
        return FlowServer(store, terms, index, timeout, state)
