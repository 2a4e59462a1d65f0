# SPDX-License-Identifier: Apache-2.0
"""Running jobs outlive a controller that has a state file."""

import queue
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controller.helpers import job, until
from tests.harness.switch_process import SwitchProcess
from weir.agent_service.client import AgentClient
from weir.controller.jobs import Job, JobState, MemberState
from weir.controller.memory import Memory, StateFileError
from weir.controller.program import load_program
from weir.controller.registry import JobRegistry, Stopped
from weir.controller.server import Settings, running
from weir.controller.switch_client import SwitchClient
from weir.controller.topology import leaf_spine, single_switch

TOPOLOGY = single_switch(4, "127.0.0.1:1")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_what_is_saved_is_loaded(state: Path) -> None:
    first, second = (
        job("first", TOPOLOGY, size=2, job_id=5, slot_base=64),
        job("second", TOPOLOGY, size=1, job_id=6),
    )
    first.members[1].state = MemberState.LEFT
    Memory(state).save([first, second])
    assert Memory(state).load(TOPOLOGY) == [first, second]
    assert stat.S_IMODE(state.stat().st_mode) == 0o600


def test_what_was_left_of_a_job_that_gives_slots_back_is_remembered(state: Path) -> None:
    made = job("lent", TOPOLOGY, size=2)
    made.revocable = True
    made.members[1].state, made.members[1].reductions = MemberState.LEFT, 7
    Memory(state).save([made])
    (found,) = Memory(state).load(TOPOLOGY)
    assert found == made
    assert found.members[1].reductions == 7


def test_a_job_that_spans_racks_is_remembered_with_its_spines(state: Path) -> None:
    racks = leaf_spine(2, 2, 2)
    wide = job("wide", racks, size=4)
    wide.switches = ("leaf1", "leaf2", "spine1", "spine2")
    wide.parents, wide.uplinks = frozenset({"spine2"}), frozenset({"spine1", "spine2"})
    Memory(state).save([wide])
    assert Memory(state).load(racks) == [wide]
    assert Memory(state).load(leaf_spine(2, 3, 2)) == []


def test_only_running_jobs_are_remembered(state: Path) -> None:
    made = job("half", TOPOLOGY, size=2)
    made.state = JobState.PROGRAMMING
    Memory(state).save([made])
    assert Memory(state).load(TOPOLOGY) == []


def test_no_file_no_jobs(state: Path) -> None:
    assert Memory(state).load(TOPOLOGY) == []
    memory = Memory(None)
    memory.save([job("any", TOPOLOGY, size=1)])
    assert memory.load(TOPOLOGY) == []


def test_a_job_whose_hosts_are_gone_is_forgotten(state: Path) -> None:
    Memory(state).save([job("wide", TOPOLOGY, size=4), job("narrow", TOPOLOGY, size=2)])
    assert [j.name for j in Memory(state).load(single_switch(2, "127.0.0.1:1"))] == ["narrow"]


def _junk(state: Path) -> None:
    state.write_text('{"jobs": [{"id": 0}]}')


def _folder(state: Path) -> None:
    state.mkdir()


@pytest.mark.parametrize("spoil", [_junk, _folder])
def test_a_file_that_cannot_be_used_is_named(state: Path, spoil: Callable[[Path], None]) -> None:
    spoil(state)
    with pytest.raises(
        StateFileError, match=r"cannot use state file .*state.json.*remove it to start without"
    ):
        Memory(state).load(TOPOLOGY)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match=r"cannot write state file .*: No such file or directory"):
        Memory(tmp_path / "nowhere" / "state.json").save([])


def _registry(*jobs: Job) -> tuple[JobRegistry, list[bool]]:
    registry = JobRegistry({"s1": 128}, 10.0, TOPOLOGY)
    return registry, [registry.adopt(one, 100.0) for one in jobs]


def test_adopted_members_have_a_lease_to_come_back() -> None:
    made = job("digits", TOPOLOGY, size=2, job_id=5)
    registry, _ = _registry(made)
    registry.attend(5, 0, "secret", 105.0)
    registry.heartbeat(made, 0, 109.0)
    registry.tick(109.9)
    assert registry.effects() == []
    registry.tick(110.0)
    assert registry.effects() == [
        Stopped(made, "job 'digits' was stopped: rank 1 (h2) is lost: it never attended for 10.0 s")
    ]


def test_slots_of_adopted_jobs_stay_theirs() -> None:
    jobs = [
        job("a", TOPOLOGY, size=1, job_id=1, slot_base=32, slot_count=32),
        job("overlaps", TOPOLOGY, size=1, job_id=2, slot_base=60, slot_count=8),
        job("beyond", TOPOLOGY, size=1, job_id=3, slot_base=120, slot_count=16),
        job("b", TOPOLOGY, size=1, job_id=4, slot_base=0, slot_count=32),
    ]
    registry, adopted = _registry(*jobs)
    assert adopted == [True, False, False, True]
    assert registry.pools["s1"].used == 64
    assert registry.programmed() == [jobs[0], jobs[3]]


def test_a_job_goes_on_over_a_restart_and_its_entries_are_never_gone(
    any_switch: SwitchProcess, state: Path
) -> None:
    """The direct counters would be zero again, had the entries been taken away and written again."""
    topology = single_switch(4, any_switch.address)
    settings = Settings(
        lease_s=5.0, state_file=state, listen=f"unix:{state.parent}/controller.sock", join_timeout_s=20.0
    )
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    with AgentClient(settings.listen) as agent:
        with running(topology, settings):
            member = agent.join(job="digits", size=1, rank=0, host="h1", token="secret")
            agent.on_stop(reasons.put)
        assert reasons.empty()
        assert _admitted(any_switch) == {member.job_id}
        with running(topology, settings) as controller:
            until(lambda: [m.state for j in agent.status().jobs for m in j.members] == ["attending"])
            assert agent.status().jobs[0].job_id == member.job_id
            with AgentClient(controller.address) as other:
                other.join(job="more", size=1, rank=0, host="h2")
                assert {j.slot_base for j in other.status().jobs} == {0, 256}
                other.leave()
            agent.leave()
            until(lambda: _admitted(any_switch) == set())
        with running(topology, settings):
            assert list(agent.status().jobs) == []
    assert reasons.empty()


def test_a_job_whose_controller_forgot_it_is_told_so(any_switch: SwitchProcess, tmp_path: Path) -> None:
    topology = single_switch(4, any_switch.address)
    settings = Settings(lease_s=5.0, listen=f"unix:{tmp_path}/controller.sock")
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    with AgentClient(settings.listen) as agent:
        with running(topology, replace(settings, state_file=tmp_path / "state.json")):
            member = agent.join(job="digits", size=1, rank=0, host="h1")
            agent.on_stop(reasons.put)
        with running(topology, settings):
            said = f"the controller knows no job {member.job_id:#010x} with this token; was it restarted?"
            assert reasons.get() == said
            until(lambda: _admitted(any_switch) == set())


def test_a_controller_that_does_not_come_back_is_given_up_after_the_lease(
    any_switch: SwitchProcess, state: Path
) -> None:
    topology = single_switch(4, any_switch.address)
    reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
    with running(topology, Settings(lease_s=0.5, state_file=state)) as controller:
        agent = AgentClient(controller.address)
        agent.join(job="digits", size=1, rank=0, host="h1")
        agent.on_stop(reasons.put)
    assert reasons.get().startswith("lost the controller: ")
    agent.close()


def test_a_state_file_that_cannot_be_written_is_told_once(
    any_switch: SwitchProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at every look at leases, of which there are four a second."""
    folder = tmp_path / "state"
    folder.mkdir()
    topology = single_switch(4, any_switch.address)
    with running(topology, Settings(state_file=folder / "jobs.json")) as controller:
        folder.rename(tmp_path / "elsewhere")
        with AgentClient(controller.address) as agent:
            agent.join(job="digits", size=1, rank=0, host="h1")
            until(lambda: "jobs will not outlive this controller" in caplog.text)
            with AgentClient(controller.address) as other:
                other.join(job="more", size=1, rank=0, host="h2")
                other.leave()
            assert caplog.text.count("jobs will not outlive this controller") == 1
            (tmp_path / "elsewhere").rename(folder)
            until((folder / "jobs.json").exists)
            agent.leave()


def _admitted(switch: SwitchProcess) -> set[int]:
    observer = SwitchClient(single_switch(1, switch.address).switches[0], 1)
    try:
        observer.ensure_program(load_program("weir_v1model"))
        entries = observer.read_table_counts("WeirIngress.admission.workers")
        return {int(str(dict(entry.match)["job"])) for entry in entries}
    finally:
        observer.close()
