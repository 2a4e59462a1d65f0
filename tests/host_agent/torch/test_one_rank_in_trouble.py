# SPDX-License-Identifier: Apache-2.0
"""The trouble of one rank, or of what started it: the others learn of it soon, and with the reason."""

import logging
import multiprocessing
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import weir
import weir.torch
from tests.harness.source import source_path
from tests.harness.started import TORCHRUN, started
from tests.host_agent.torch.worlds import World
from weir.agent_service import waiting
from weir.agent_service.client import AgentClient, AgentError
from weir.agent_service.proto import agent_pb2
from weir.cluster import LocalCluster
from weir.host_agent.torch import connection, silent_store, stall_watch
from weir.host_agent.torch.silent_store import StoreSilentError, within
from weir.host_agent.torch.stall_watch import StallWatch

SIZE = 2
HOSTS = 8
FORK = multiprocessing.get_context("fork")


def attempts(results: Any) -> None:
    """Use a member in a fork of it; to be run there."""
    said = []
    tensor = torch.ones(3)
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.send(tensor, 1),
        lambda: dist.recv(tensor, 1),
        dist.barrier,
        lambda: dist.new_group([0]),
    ):
        try:
            call()
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    dist.group.WORLD.abort()
    dist.destroy_process_group()
    results.send(said)


def members_and_a_fork() -> list[str]:
    """Fork rank 0, use the member there, and go on with both ranks."""
    dist.all_reduce(torch.ones(3))
    said: list[str] = []
    if dist.get_rank() == 0:
        ours, theirs = FORK.Pipe()
        child = FORK.Process(target=attempts, args=(theirs,))
        child.start()
        assert ours.poll(20), "a fork of a member waits for something"
        said = ours.recv()
        child.join(20)
        assert child.exitcode == 0
    for _ in range(3):
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [SIZE] * 3
    return said


def test_a_member_is_refused_in_a_fork_and_lives_on_in_its_process(world: World) -> None:
    said = world.run(members_and_a_fork)[0]
    assert len(said) == 5
    assert all(
        one.startswith("ForkedError: process ") and "make groups in the child" in one for one in said
    ), said


def test_a_client_is_refused_in_a_fork(cluster: LocalCluster) -> None:
    with AgentClient(cluster.controller) as client:
        client.join(job="forked", size=1, rank=0, host="h8")

        def in_child(results: Any) -> None:
            try:
                client.status()
            except AgentError as error:
                results.send(str(error))
            client.leave()
            client.give_up("the child's")
            client.close()

        ours, theirs = FORK.Pipe()
        child = FORK.Process(target=in_child, args=(theirs,))
        child.start()
        assert ours.poll(20)
        assert "a fork of it needs its own" in ours.recv()
        child.join(20)
        assert client.stopped is None
        assert [job.name for job in client.status().jobs if job.name == "forked"]
        client.leave()


def aborted() -> str:
    group = dist.group.WORLD
    work = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
    if work is None:
        group.abort()
        work = dist.all_reduce(torch.ones(3), async_op=True)
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        work.wait()
    return str(caught.value)


def test_a_rank_that_gives_up_tells_the_others_why(cluster: LocalCluster) -> None:
    with World(SIZE, lambda rank: {**cluster.environment(rank + 2), "WEIR_LOCAL": "off"}) as doomed:
        said = doomed.run(aborted)
    assert "rank 1 (h4) gave up: this rank aborted the process group" in said[0]
    assert "this rank aborted the process group" in said[1]


def test_ranks_of_one_host_are_told_too() -> None:
    with World(SIZE, lambda _rank: {"WEIR_LOCAL": "on"}) as doomed:
        assert "this rank aborted the process group" in doomed.run(aborted)[0]


def test_a_job_that_the_controller_knows_no_more_breaks_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_watch, "_POLL_S", 0.01)
    monkeypatch.setattr(stall_watch, "_COUNTED_S", 0.05)
    monkeypatch.setattr(stall_watch, "FIRST_S", 0.1)
    gone, said = threading.Event(), []

    def heard(reason: str) -> None:
        said.append(reason)
        gone.set()

    watch = StallWatch("rank 0", lambda: 7, lambda: 1.0, agent_pb2.StatusReply, [[0], [1]], heard)
    assert gone.wait(20)
    watch.close()
    assert said[0].startswith("the controller no longer knows this job")


# ---- the launcher

PROGRAM = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist, weir.torch
from weir.host_agent.torch import call_board

call_board._WAIT_S = 1.0  # for less time in this test
dist.init_process_group("weir", timeout=timedelta(seconds=30))
rank, launcher = dist.get_rank(), os.getppid()
group = dist.new_group(timeout=timedelta(seconds=5))
for made in (group, None):
    dist.all_reduce(torch.ones(3), group=made)


def outcome(call):
    began = time.monotonic()
    try:
        call()
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    assert time.monotonic() - began < 30
    with open(f"{sys.argv[1]}/{rank}", "a") as file:
        print(said, file=file)


def is_stopped(process):
    tasks = f"/proc/{process}/task"
    stats = [open(f"{tasks}/{each}/stat").read() for each in os.listdir(tasks)]
    return {each.rpartition(")")[2].split()[0] for each in stats} <= {"T", "t"}


if rank == 0:
    os.kill(launcher, signal.SIGSTOP)
    while not is_stopped(launcher):
        time.sleep(0.01)
try:
    dist.barrier(group)
    outcome(lambda: dist.all_reduce(torch.ones(3)))
    outcome(lambda: dist.new_group(timeout=timedelta(seconds=1)))
    outcome(lambda: dist.all_reduce(torch.ones(4 + rank), group=group))
    outcome(lambda: dist.all_reduce(torch.ones(3)))
    dist.barrier()
finally:
    if rank == 0:
        os.kill(launcher, signal.SIGCONT)
    time.sleep(2)  # calls that still wait for the store end
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_launcher_that_is_stopped_makes_nobody_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with started(
        tmp_path,
        *TORCHRUN,
        f"--nproc-per-node={SIZE}",
        program,
        tmp_path,
        environment={"PYTHONPATH": source_path(), "OMP_NUM_THREADS": "1"},
    ) as job:
        assert job.wait() == 0, job.said
    for rank in range(SIZE):
        summed, made, disagreed, went_on = (tmp_path / str(rank)).read_text().splitlines()
        assert summed == went_on == "nothing"
        assert (
            made.startswith("RendezvousError: after 1 s still waiting for torch's store")
            and "stopped?" in made
        )
        assert f"rank {rank} called all_reduce(float32[{4 + rank}], SUM)" in disagreed
        assert f"rank {1 - rank} did not say what it called" in disagreed


def test_a_store_that_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_S", 0.05)
    monkeypatch.setattr(silent_store, "_LOOK_S", 0.01)
    assert within(20, lambda: 7) == 7
    with pytest.raises(KeyError):
        within(20, lambda: {}[1])

    def late() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        within(20, late)
    for_ever = threading.Event()
    with pytest.raises(StoreSilentError, match=r"after 0\.2 s still waiting for torch's store"):
        within(0.2, for_ever.wait)
    for_ever.set()
    assert "still waiting for torch's store" in caplog.text


def test_an_answer_that_comes_as_the_wait_for_it_ends_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Future[int]):
        """Done when a wait for it has just timed out."""

        def result(self, timeout: float | None = None) -> int:
            found = super().result(20)
            if timeout is not None:
                raise TimeoutError
            return found

    monkeypatch.setattr(silent_store, "Future", Late)
    assert within(20, lambda: 7) == 7


# ---- a rank that fails alone


def failure_of_rank_1() -> str:
    """Fail on rank 1 alone, while rank 0 calls nothing; return what rank 1's log says, and rank 0 hears."""
    group = dist.group.WORLD
    if dist.get_rank() == 0:
        began = time.monotonic()
        while group.connection.broken is None and time.monotonic() - began < 20:
            time.sleep(0.01)
        return str(group.connection.broken)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    connection.log.addHandler(handler)
    connection._LAST_ROUND_S = 0.5
    with pytest.raises(TypeError, match="BAND"):
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    connection.log.removeHandler(handler)
    return "\n".join(said)


def test_a_rank_that_fails_alone_says_so_at_once_and_waits_shortly_for_the_others() -> None:
    with World(SIZE, lambda _rank: {"WEIR_LOCAL": "on"}, timeout_s=100) as doomed:
        heard, logged = doomed.run(failure_of_rank_1)
    assert "rank 1 of 2 in job" in logged
    assert (failure := "failed in all_reduce(float32[3], BAND): TypeError: ") in logged
    assert logged.endswith("; telling the other ranks")
    assert f"this rank {failure}" in heard
