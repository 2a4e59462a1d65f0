# SPDX-License-Identifier: Apache-2.0
"""Signals at processes that wait for others: they end at once, as Python programs do."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from torch._C._distributed_c10d import Store

from tests.harness.commands import Command
from tests.harness.source import source_path
from tests.harness.started import started
from weir.host_agent.torch.parameter_server import stall
from weir.host_agent.torch.parameter_server.stall import telling

WAITING_RANKS = """
import os, signal, socket, sys, time
from datetime import timedelta
import torch.distributed as dist
from weir.host_agent.torch import rendezvous

with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
children = []
for _ in range(3):
    if not (child := os.fork()):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        store.add("there", 1)
        rendezvous._attend(store, "attempt", [0], 0, timedelta(seconds=60))
        sys.exit("it has not waited")
    children.append(child)
store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
while store.add("there", 0) < len(children):
    time.sleep(0.01)
time.sleep(0.2)
for child in children:
    os.kill(child, signal.SIGINT)
print("ended:", *[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""

SERVER = """
import sys
from weir.agent_service import waiting

waiting.FIRST_S = 0.1
from weir.server.cli import server

server(rendezvous=sys.argv[1])
"""


def test_an_interrupt_while_rank_0_decides_is_one(tmp_path: Path) -> None:
    """A call to torch's store that waits when the process ends aborts it (SIGABRT)."""
    script = tmp_path / "ranks.py"
    script.write_text(WAITING_RANKS)
    with Command(script) as ranks:
        said = ranks.said()
    assert ranks.returncode == 0, said
    interrupted = -signal.SIGINT
    assert f"ended: {interrupted} {interrupted} {interrupted}" in said
    assert "KeyboardInterrupt" in said


def test_a_server_that_waits_for_the_terms_can_be_stopped(tmp_path: Path) -> None:
    meet = f"file://{tmp_path / 'store'}"
    with started(
        tmp_path, sys.executable, "-c", SERVER, meet, environment={"PYTHONPATH": source_path()}
    ) as server:
        server.wait_for("still waiting for worker 0 to say which model to serve")
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait(30) == -signal.SIGTERM


class SilentStore(Store):
    """A store whose process is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def set(self, _key: str, _value: str) -> None:
        """Wait for an answer."""
        self.over.wait()


def test_a_server_ends_though_the_store_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "_SAY_S", 0.1)
    store, ended = SilentStore(), threading.Event()

    def serve() -> None:
        try:
            with telling(store, 0):
                raise SystemExit(143)
        except SystemExit:
            ended.set()

    threading.Thread(target=serve, daemon=True).start()
    try:
        assert ended.wait(20)
    finally:
        store.over.set()
