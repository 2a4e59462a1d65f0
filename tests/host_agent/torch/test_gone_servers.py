# SPDX-License-Identifier: Apache-2.0
"""Servers and workers that are gone: the others say whom they wait for, why, and end at their timeouts."""

import logging
import os
import resource
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

import weir.torch
from tests.host_agent.torch.job_groups import Job
from tests.host_agent.torch.test_parameter_server import wait_for
from weir.agent_service import waiting
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.worker_machine import WorkerMachine, WorkerRules
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.parameter_server.flow_rendezvous import FlowRendezvous, Place
from weir.host_agent.torch.parameter_server.flow_server import open_state, table_of
from weir.host_agent.torch.parameter_server.job_group import await_terms, open_store
from weir.host_agent.torch.parameter_server.serve import make_server
from weir.host_agent.torch.parameter_server.stall import Stall, telling

Said = tuple[str, list[str]]
"""What a process ended with, and the lines of its log."""


def impatient() -> None:
    """Let the first line of a wait come after 0.2 s."""
    waiting.FIRST_S = 0.2  # type: ignore[misc]
    logging.getLogger("weir").addHandler(_lines)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.file: Path | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        if self.file is not None:
            self.file.write_text("\n".join(self.said))


_lines = _Lines()


def servers_of(kind: str, rank: int, workers: int, servers: int, timeout_s: float) -> Any:
    torch.manual_seed(1)
    model = nn.Linear(300, 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    common = {"servers": servers, "rank": rank, "workers": workers, "timeout": timedelta(seconds=timeout_s)}
    if kind == "placed":
        return model, weir.torch.ParameterServer(model, optimizer, migrate_every=1000, **common)
    return model, weir.torch.ParameterServer(model, optimizer, consistency=kind, **common)


def train(
    rank: int,
    kind: str,
    workers: int,
    servers: int,
    timeout_s: float,
    folder: Path,
    steps: int = 10**6,
    pause_s: float = 0.02,
    dies: bool = False,
) -> Said:
    """Train until the steps are done, or an error ends it. dies: without a word, instead of the last step."""
    _lines.file = folder / f"log-{rank}"
    try:
        model, session = servers_of(kind, rank, workers, servers, timeout_s)
        for step in range(steps):
            model.zero_grad()
            model(torch.ones(2, 300)).square().mean().backward()
            session.step()
            (folder / f"stepped-{rank}").write_text(str(step + 1))
            time.sleep(pause_s)
        if dies:
            os._exit(1)
        session.finish()
        session.close()
    except (GroupBrokenError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}", _lines.said
    return "done", _lines.said


def steps_of(folder: Path, rank: int) -> int:
    file = folder / f"stepped-{rank}"
    return int(file.read_text() or 0) if file.exists() else 0


def serve(index: int, folder: Path, timeout_s: float, prepare: Callable[[int, Path], None] | None) -> Said:
    """Be a server with a state that ``prepare`` has made."""
    if prepare is not None:
        prepare(index, folder / f"state-{index}")
    try:
        limit = timedelta(seconds=timeout_s)
        make_server(open_store(None, leads=False), index, limit, folder / f"state-{index}").run()
    except Exception as error:
        return f"{type(error).__name__}: {error}", _lines.said
    return "done", _lines.said


def act(rank: int, workers: int, trained: tuple[Any, ...], served: tuple[Any, ...]) -> Said:
    return train(rank, *trained) if rank < workers else serve(rank - workers, *served)


def of_other_terms(_index: int, state: Path) -> None:
    state.mkdir()
    (state / "terms.json").write_text("{}")


def of_a_finished_job(index: int, state: Path) -> None:
    store = open_store(None, leads=False)
    terms = await_terms(store)
    table, size = table_of(store, terms, timedelta(seconds=30)), terms.units().size
    worker = WorkerMachine(0, 77, np.empty(size, np.uint32), table, WorkerRules(), Residual(size))
    with open_state(state, terms, index) as journal:
        model = np.zeros(size, np.float32)
        for message in (worker.beginning(index, model), worker.hello(index), worker.leave()):
            journal.append(message.encode().tobytes())


def bad_states(index: int, state: Path) -> None:
    (of_other_terms, of_a_finished_job)[index](index, state)


@pytest.mark.parametrize("kind", ["async", "placed"])
def test_servers_that_do_not_serve_are_named_with_their_reasons(kind: str, tmp_path: Path) -> None:
    """The first refuses its state, the job of the second one's is over, and the third does not come."""
    trained = (kind, 1, 3, 3.0, tmp_path)
    with Job(3, 0, act, 1, trained, (tmp_path, 30.0, bad_states), first=impatient) as job:
        (worker, log), refused, finished = job.outcomes()
    assert worker.startswith("GroupBrokenError: worker 0 has waited for 3 s for parameter server 0")
    reasons = [
        "parameter server 0 ",
        "(it says: it has ended: ",
        "state of a job with other terms",
        "parameter server 1 ",
        "(it says: it has ended: the job that its state is of is over",
        "parameter server 2 ",
        "(it has not come",
        "start",
    ]
    assert all(words in worker for words in reasons), worker
    assert any("still waiting for" in line and all(words in line for words in reasons) for line in log), log
    assert refused[0].startswith("JournalError: ") and "other terms" in refused[0]
    assert finished[0] == "done" and any("is over" in line for line in finished[1])


@pytest.mark.parametrize("kind", ["ssp:1", "placed"])
def test_a_server_that_was_killed_is_named_and_so_is_the_time(kind: str, tmp_path: Path) -> None:
    trained = (kind, 1, 1, 1.0, tmp_path)
    with Job(2, 0, act, 1, trained, (tmp_path, 30.0, None), first=impatient) as job:
        wait_for(lambda: steps_of(tmp_path, 0) > 2)
        job.processes[1].kill()
        ((worker, log),) = job.outcomes([0])
    assert worker.startswith("GroupBrokenError: worker 0 has waited for 1 s for parameter server 0 ")
    assert "(at 127.0.0.1:" in worker
    assert "with its state (weir server --" in worker
    assert any("still waiting for parameter server 0 " in line for line in log), log


def serve_on_a_small_disk(index: int, folder: Path) -> Said:
    """Be a server that may write 20 kB to a file, and, when that has ended it, the same without a bound."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, most))
    first = serve(index, folder, 30.0, None)
    wait_for((folder / "room").exists)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return first[0], [serve(index, folder, 30.0, None)[0]]


def act_with_a_full_disk(rank: int, kind: str, folder: Path) -> Said:
    if rank:
        return serve_on_a_small_disk(0, folder)
    return train(rank, kind, 1, 1, 30.0, folder, 40, 0.0)


@pytest.mark.parametrize("kind", ["async", "placed"])
def test_a_server_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(
    kind: str, tmp_path: Path
) -> None:
    with Job(2, 0, act_with_a_full_disk, kind, tmp_path, first=impatient) as job:
        log_file = tmp_path / "log-0"
        wait_for(lambda: log_file.exists() and "cannot be written" in log_file.read_text())
        (tmp_path / "room").touch()
        (worker, log), (full, again) = job.outcomes()
    assert full.startswith("JournalError: ")
    assert "journal cannot be written: No space left on device; make room" in full
    assert any("it says: it has ended: " in line and "cannot be written" in line for line in log), log
    assert (worker, again) == ("done", ["done"])
    assert steps_of(tmp_path, 0) == 40


def act_beside_a_dead_worker(rank: int, kind: str, folder: Path) -> Said:
    if rank == 2:
        return serve(0, folder, 1.5, None)
    return train(rank, kind, 2, 1, 3.0, folder, 5 if rank else 10**6, 0.02, bool(rank))


@pytest.mark.parametrize("kind", ["ssp:1", "placed"])
def test_a_worker_that_died_is_named_by_the_server_and_by_the_others(kind: str, tmp_path: Path) -> None:
    with Job(3, 0, act_beside_a_dead_worker, kind, tmp_path, first=impatient) as job:
        ((worker, log),) = job.outcomes([0])
        job.processes[2].kill()
    late = "worker 1 to make step 6"
    assert worker.startswith("GroupBrokenError: worker 0 has waited for 3 s for parameter server 0"), worker
    assert any(f"it says: it waits for {late}" in line for line in log), log


def act_without_one(rank: int, folder: Path) -> Said:
    if rank == 1:
        return serve(0, folder, 30.0, None)
    return train(0, "async", 2, 1, 2.0, folder)


def test_a_worker_that_never_comes_is_named(tmp_path: Path) -> None:
    with Job(2, 0, act_without_one, tmp_path, first=impatient) as job:
        ((worker, _),) = job.outcomes([0])
        job.processes[1].kill()
    assert worker.startswith("GroupBrokenError: worker 0 has waited for 2 s for worker 1"), worker


def act_slowly(rank: int, folder: Path) -> Said:
    if rank == 1:
        return serve(0, folder, 30.0, None)
    return train(0, "async", 1, 1, 2.0, folder, 1, 2.3)


def test_a_pause_of_the_training_is_nobodys_silence(tmp_path: Path) -> None:
    """It is longer than the timeout, which is of waiting."""
    with Job(2, 0, act_slowly, tmp_path, first=impatient) as job:
        assert [said for said, _ in job.outcomes()] == ["done", "done"]


def test_a_server_that_is_stopped_tells_its_workers_and_its_successor_takes_that_back() -> None:
    store = HashStore()
    rendezvous = FlowRendezvous(store)
    with pytest.raises(SystemExit), telling(store, 1):
        raise SystemExit(143)
    assert rendezvous.whereabouts(1) == "it says: it was stopped"
    assert rendezvous.whereabouts(0) == "it has not come"
    rendezvous.announce(1, Place("10.0.0.1", 9348, 7))
    assert rendezvous.whereabouts(1) == "at 10.0.0.1:9348"
    rendezvous.say(0, "it has ended: in an earlier job")
    rendezvous.forget_words(2)
    assert rendezvous.word(0) == ""


def test_a_server_tells_for_whom_it_waits_and_takes_it_back_when_it_goes_on() -> None:
    rendezvous = FlowRendezvous(HashStore())
    stall = Stall(logging.getLogger("weir.test"), rendezvous, 0)
    for second in (0.0, waiting.FIRST_S):
        stall.look(second, "worker 1 to join")
    assert rendezvous.word(0) == "it waits for worker 1 to join"
    assert stall.explain(9.0).startswith("server 0 has heard nothing for 9 s, and waits for worker 1 to join")
    stall.look(6.0, "")
    assert rendezvous.word(0) == ""
