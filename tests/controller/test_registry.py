# SPDX-License-Identifier: Apache-2.0
"""Jobs live and die as agreed, and who is refused is told why. Time is an argument here."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.agent_service import PUBLISHER_SLOTS
from weir.controller.jobs import Job, JobError, JobState, JoinSpec, MemberState, Refusal
from weir.controller.registry import (
    RECLAIM_S,
    Ended,
    Formed,
    GatherFailed,
    JobRegistry,
    Left,
    Reclaim,
    Stopped,
    Subscribed,
)
from weir.controller.topology import leaf_spine, leaf_spine_core, single_switch
from weir.controller.wiring import Host

LEASE = 10.0
ONE = single_switch(40, "127.0.0.1:1")
UNLINKED = ONE.model_copy(
    update={"switches": (*ONE.switches, ONE.switches[0].model_copy(update={"name": "s2"}))}
)
HOSTS = ONE.hosts
RACKS = leaf_spine(3, 2, 4)
SHM_HOSTS = single_switch(4, "127.0.0.1:1", "/dev/shm/weir-s1").hosts


@pytest.fixture
def registry() -> JobRegistry:
    return JobRegistry({"s1": 256, "s2": 256}, LEASE, UNLINKED)


def spec(rank: int, size: int = 2, job: str = "digits", host: Host | None = None, **more: object) -> JoinSpec:
    return replace(JoinSpec(job, "secret", size, rank, host or HOSTS[rank]), **more)


def run(
    registry: JobRegistry, size: int = 2, job: str = "digits", now: float = 0.0, first_host: int = 0
) -> Job:
    """Return a running job with everybody attending."""
    for rank in range(size):
        made = registry.join(spec(rank, size, job, HOSTS[first_host + rank]), now, 60)
    assert registry.effects() == [Formed(made)]
    registry.started(made, now)
    for rank in range(size):
        registry.attend(made.id, rank, "secret", now)
    return made


def published(registry: JobRegistry, now: float = 0.0) -> Job:
    """Return a running job that publishes."""
    job = registry.join(spec(0, 1, "policy", slots=PUBLISHER_SLOTS, publishes=True), now, 60)
    assert registry.effects() == [Formed(job)]
    registry.started(job, now)
    registry.attend(job.id, 0, "secret", now)
    return job


def subscriber(host: int, **more: object) -> JoinSpec:
    return spec(0, 1, "policy", HOSTS[host], subscribes=True, **more)


def subscribed(registry: JobRegistry, job: Job, host: int, now: float = 0.0) -> int:
    rank = registry.subscribe(job, subscriber(host), now)
    assert registry.effects() == [Subscribed(job)]
    registry.attend(job.id, rank, "secret", now)
    return rank


def refusal(caught: pytest.ExceptionInfo[JobError]) -> tuple[Refusal, str]:
    return caught.value.refusal, str(caught.value)


# ---- joining


def test_a_job_forms_when_the_last_rank_joins(registry: JobRegistry) -> None:
    first = registry.join(spec(1), 0, 60)
    assert registry.effects() == []
    assert first.state is JobState.GATHERING
    assert registry.join(spec(0), 1, 60) is first
    assert registry.effects() == [Formed(first)]
    assert first.state is JobState.PROGRAMMING
    assert first.slots is not None
    assert (first.slots.base, first.slots.count) == (0, 64)
    assert 0 < first.id < 1 << 32
    assert registry.programmed() == [first]


def test_a_job_of_one_forms_at_once(registry: JobRegistry) -> None:
    made = registry.join(spec(0, 1), 0, 60)
    assert registry.effects() == [Formed(made)]


def test_jobs_have_disjoint_slots_and_different_ids(registry: JobRegistry) -> None:
    jobs = [run(registry, 2, f"job{i}", first_host=2 * i) for i in range(4)]
    assert [job.slots.base for job in jobs if job.slots] == [0, 64, 96, 128]
    assert len({job.id for job in jobs}) == 4


@pytest.mark.parametrize(
    ("wrong", "why", "says"),
    [
        ({"size": 32769}, Refusal.INVALID, "job 'digits' has 32769 workers; a job has 1 to 32768"),
        ({"size": 0}, Refusal.INVALID, "job 'digits' has 0 workers"),
        ({"rank": 2}, Refusal.INVALID, "rank 2 is not one of the 2 ranks of job 'digits'"),
        ({"job": ""}, Refusal.INVALID, "the job has no name"),
        ({"udp_port": 65536}, Refusal.INVALID, "65536 is not a UDP port"),
        ({"slots": 257}, Refusal.EXHAUSTED, "job 'digits' asks for 257 slots; switch s1 has 256"),
    ],
)
def test_what_can_never_be_is_refused(
    registry: JobRegistry, wrong: dict[str, object], why: Refusal, says: str
) -> None:
    with pytest.raises(JobError) as caught:
        registry.join(replace(spec(0), **wrong), 0, 60)
    assert refusal(caught)[0] is why
    assert says in str(caught.value)
    assert registry.jobs() == []


@pytest.mark.parametrize(
    ("second", "why", "says"),
    [
        (spec(0, host=HOSTS[5]), Refusal.TAKEN, "rank 0 of job 'digits' has already joined, from h1"),
        (
            spec(1, 3),
            Refusal.INVALID,
            "rank 1 says job 'digits' has 3 workers, but rank 0 (h1) says it has 2",
        ),
        (spec(1, slots=8), Refusal.INVALID, "has 8 slots, but rank 0 (h1) says it has any number"),
        (spec(1, token="guess"), Refusal.DENIED, "job 'digits' already exists with another token"),
        (
            spec(1, host=HOSTS[0]),
            Refusal.EXHAUSTED,
            "UDP port 9347 of host h1 is in use by rank 0 of job 'digits'",
        ),
        (
            spec(1, host=HOSTS[1].model_copy(update={"switch": "s2"})),
            Refusal.INVALID,
            "host h2 is on switch s2, but rank 0 (h1) is on s1, and no spine links them; "
            "a job's workers are on one switch or on linked ones",
        ),
    ],
)
def test_who_disagrees_is_refused_and_the_others_wait_on(
    registry: JobRegistry, second: JoinSpec, why: Refusal, says: str
) -> None:
    job = registry.join(spec(0), 0, 60)
    with pytest.raises(JobError) as caught:
        registry.join(second, 1, 1)
    assert refusal(caught)[0] is why
    assert says in str(caught.value)
    registry.tick(30)
    assert registry.effects() == []
    assert registry.join(spec(1), 31, 60) is job


def test_several_workers_of_a_host_have_udp_ports_of_their_own(registry: JobRegistry) -> None:
    job = registry.join(spec(0, host=HOSTS[0], udp_port=10000), 0, 60)
    assert registry.join(spec(1, host=HOSTS[0], udp_port=10001), 0, 60) is job
    assert registry.effects() == [Formed(job)]


def test_a_shared_memory_port_has_one_user_among_all_jobs(registry: JobRegistry) -> None:
    registry.join(spec(0, 1, "first", SHM_HOSTS[0]), 0, 60)
    with pytest.raises(JobError) as caught:
        registry.join(spec(1, 2, "second", SHM_HOSTS[0], udp_port=10000), 0, 60)
    assert refusal(caught) == (
        Refusal.EXHAUSTED,
        "shared-memory port 1 of switch s1 is in use by rank 0 of job 'first'; "
        "put rank 1 of job 'second' on another host or port, or wait",
    )


def test_jobs_of_one_process_share_its_port_but_ranks_of_one_job_do_not(registry: JobRegistry) -> None:
    registry.join(spec(0, 1, "world", SHM_HOSTS[0], process="p"), 0, 60)
    registry.join(spec(0, 2, "pair", SHM_HOSTS[0], process="p"), 0, 60)
    for job, process in (("pair", "p"), ("other", "q"), ("other", "")):
        with pytest.raises(JobError, match="shared-memory port 1 of switch s1 is in use"):
            registry.join(spec(1, 2, job, SHM_HOSTS[0], process=process), 0, 60)


def test_slot_exhaustion_says_what_is_free_and_who_has_the_rest(registry: JobRegistry) -> None:
    run(registry, 2, "small")
    for rank in range(2):
        late = registry.join(spec(rank, 2, "large", HOSTS[2 + rank], slots=200), 0, 60)
    (effect,) = registry.effects()
    assert isinstance(effect, GatherFailed)
    assert effect.job is late
    assert effect.error.refusal is Refusal.EXHAUSTED
    assert str(effect.error) == (
        "no slots for job 'large' on switch s1: 200 consecutive slots are wanted of 256; "
        "192 are free (longest run: 192); held by 'small' (64 slots). "
        "Ask for fewer (GroupOptions(slots=N)), wait until another job is over, or compile the switch's "
        "program with more (SLOTS in p4src/v1model/config.p4, then python p4src/build.py)"
    )
    assert effect.ranges == "free: 64-255; held: 'small' 0-63"  # for the log alone
    assert [job.name for job in registry.jobs()] == ["small"]


def test_slot_exhaustion_names_the_jobs_that_hold_most() -> None:
    registry = JobRegistry({"s1": 256}, LEASE, ONE)
    for number, slots in enumerate([4, 100, 2, 2, 60, 50, 30, 2]):
        registry.join(spec(0, 1, f"job{number}", HOSTS[number], slots=slots), 0, 60)
    registry.effects()
    registry.join(spec(0, 1, "late", HOSTS[20], slots=20), 0, 60)
    (effect,) = registry.effects()
    assert isinstance(effect, GatherFailed)
    assert (
        "held by 'job1' (100 slots), 'job4' (60 slots), 'job5' (50 slots), 'job6' (30 slots), "
        "'job0' (4 slots) and 3 more jobs (6 slots)."
    ) in str(effect.error)


# ---- slots that are given back


def lent(registry: JobRegistry, slots: int = 200) -> Job:
    """Return a running job of two workers that gives its slots back."""
    for rank in range(2):
        made = registry.join(spec(rank, 2, "lent", slots=slots, revocable=True), 0, 60)
    assert registry.effects() == [Formed(made)]
    registry.started(made, 0)
    for rank in range(2):
        registry.attend(made.id, rank, "secret", 0)
    return made


def wants(registry: JobRegistry, slots: int, now: float = 1.0) -> Job:
    return registry.join(spec(0, 1, "wants", HOSTS[5], slots=slots), now, 60)


def test_slots_that_are_missing_are_asked_for_and_come_back(registry: JobRegistry) -> None:
    holder = lent(registry)
    waiting = wants(registry, 100)
    assert registry.effects() == [Reclaim(holder)]
    registry.leave(holder.id, 0, "secret", 1.1, reductions=7)
    assert registry.effects() == [Left(holder, holder.members[0])]
    assert holder.members[0].reductions == 7
    registry.leave(holder.id, 1, "secret", 1.2, reductions=7)
    assert registry.effects() == [Formed(waiting), Ended(holder)]
    assert registry.pools["s1"].used == 100


def test_nobody_is_asked_while_there_are_enough(registry: JobRegistry) -> None:
    lent(registry)
    waiting = wants(registry, 50)
    assert registry.effects() == [Formed(waiting)]


def test_a_job_that_names_no_number_asks_before_it_takes_few(registry: JobRegistry) -> None:
    holder = lent(registry)
    waiting = wants(registry, 0)
    assert registry.effects() == [Reclaim(holder)]
    registry.keep(holder)
    assert registry.effects() == [Formed(waiting)]
    assert waiting.slots is not None
    assert waiting.slots.count == 16


@pytest.mark.parametrize("answers", [True, False])
def test_a_busy_holder_keeps_its_slots_and_nobody_waits_for_long(
    registry: JobRegistry, answers: bool
) -> None:
    holder = lent(registry)
    waiting = wants(registry, 100)
    assert registry.effects() == [Reclaim(holder)]
    if answers:
        registry.keep(holder)
    else:
        registry.tick(1 + RECLAIM_S / 2)
        assert registry.effects() == []
        registry.tick(1 + RECLAIM_S)
    (failed,) = registry.effects()
    assert isinstance(failed, GatherFailed)
    assert failed.job is waiting
    assert "held by 'lent' (200 slots)" in str(failed.error)
    assert registry.programmed() == [holder]


def test_a_holder_that_some_have_left_is_not_busy_any_more(registry: JobRegistry) -> None:
    holder = lent(registry)
    waiting = wants(registry, 100)
    registry.leave(holder.id, 0, "secret", 1.1)
    registry.keep(holder)  # said before it heard of that
    registry.leave(holder.id, 1, "secret", 1.2)
    assert registry.effects() == [
        Reclaim(holder),
        Left(holder, holder.members[0]),
        Formed(waiting),
        Ended(holder),
    ]


def test_nobody_waits_for_more_holders_than_it_takes(registry: JobRegistry) -> None:
    holders = [
        registry.join(spec(0, 1, f"lent{number}", HOSTS[number], slots=100, revocable=True), 0, 60)
        for number in range(2)
    ]
    for holder in holders:
        registry.started(holder, 0)
    waiting = wants(registry, 100)
    registry.effects()
    registry.leave(holders[1].id, 0, "secret", 1.1)
    assert registry.effects() == [Formed(waiting), Ended(holders[1])]


def test_a_job_that_waits_for_slots_can_be_given_up_and_joined_again(registry: JobRegistry) -> None:
    holder = lent(registry)
    waiting = wants(registry, 100)
    registry.withdraw(waiting, 0)
    registry.keep(holder)
    assert registry.effects() == [Reclaim(holder)]
    again = wants(registry, 100)
    registry.lose(holder, 0)
    assert [type(effect) for effect in registry.effects()] == [Reclaim, Formed, Stopped]
    assert again.slots is not None


def test_the_holders_of_another_switch_are_not_asked(racks: JobRegistry) -> None:
    hosts = leaf_spine(2, 2, 4).hosts
    holder = racks.join(spec(0, 1, "lent", hosts[0], slots=200, revocable=True), 0, 60)
    racks.effects()
    racks.started(holder, 0)
    racks.join(spec(0, 1, "there", hosts[5], slots=250), 0, 60)
    racks.effects()
    racks.join(spec(0, 1, "more", hosts[6], slots=250), 0, 60)
    assert [type(effect) for effect in racks.effects()] == [GatherFailed]


def test_workers_that_disagree_about_giving_back_are_told(registry: JobRegistry) -> None:
    registry.join(spec(0, revocable=True), 0, 60)
    with pytest.raises(JobError, match="says it gives its slots back when others need them"):
        registry.join(spec(1), 0, 60)


# ---- several racks


@pytest.fixture
def racks() -> JobRegistry:
    return JobRegistry(dict.fromkeys((switch.name for switch in RACKS.switches), 256), LEASE, RACKS)


def across(registry: JobRegistry, name: str, hosts: list[int], slots: int = 0) -> Job:
    """Return a formed job with rank i on host ``hosts[i]`` of three racks of four; forgets the effects."""
    there = RACKS.hosts
    for rank, number in enumerate(hosts):
        job = registry.join(spec(rank, len(hosts), name, there[number - 1], slots=slots), 0, 60)
    return job


def test_a_job_that_spans_racks_has_the_same_slots_on_all_its_switches(racks: JobRegistry) -> None:
    home = across(racks, "home", [1, 2], slots=100)
    assert (home.switches, str(home.slots)) == (("leaf1",), "0-99")
    away = across(racks, "away", [9, 10], slots=50)
    assert (away.switches, str(away.slots)) == (("leaf3",), "0-49")
    wide = across(racks, "wide", [5, 3], slots=64)
    assert (wide.leaves, wide.switches) == (("leaf2", "leaf1"), ("leaf2", "leaf1", "spine1", "spine2"))
    assert str(wide.slots) == "100-163"
    used = {name: pool.used for name, pool in racks.pools.items()}
    assert used == {"leaf1": 164, "leaf2": 64, "leaf3": 50, "spine1": 64, "spine2": 64}
    for rank in range(2):
        racks.leave(wide.id, rank, "secret", 1)
    assert {name: pool.used for name, pool in racks.pools.items()} == {
        **used,
        "leaf1": 100,
        "leaf2": 0,
    } | dict.fromkeys(("spine1", "spine2"), 0)


def test_a_job_has_slots_in_its_own_pods_and_on_cores_only_if_it_spans_pods() -> None:
    topology = leaf_spine_core(3, 2, 2, 2, 1)
    registry = JobRegistry({switch.name: 256 for switch in topology.switches}, LEASE, topology)

    def formed(name: str, hosts: list[int]) -> Job:
        for rank, host in enumerate(hosts):
            made = registry.join(spec(rank, len(hosts), name, topology.hosts[host - 1], slots=16), 0, 60)
        return made

    assert formed("rack", [1]).switches == ("leaf1",)
    assert formed("pod", [4, 3]).switches == ("leaf4", "leaf3", "spine3", "spine4")
    wide = formed("pods", [6, 2])
    assert wide.switches == ("leaf6", "leaf2", "spine5", "spine6", "spine1", "spine2", "core1", "core2")
    assert (str(wide.slots), registry.pools["core1"].used, registry.pools["spine3"].used) == ("0-15", 16, 16)


def test_a_switch_with_more_than_32_children_is_refused() -> None:
    registry = JobRegistry({"s1": 256}, LEASE, ONE)
    for rank in range(32):
        job = registry.join(spec(rank, 33), 0, 60)
    with pytest.raises(JobError) as caught:
        registry.join(spec(32, 33), 0, 60)
    assert refusal(caught)[0] is Refusal.INVALID
    assert "would have 33 workers on switch s1: a switch sums at most 32 children" in refusal(caught)[1]
    assert sorted(job.members) == list(range(32))
    racks = leaf_spine(33, 1, 1)
    registry = JobRegistry({switch.name: 256 for switch in racks.switches}, LEASE, racks)
    for rank in range(32):
        registry.join(spec(rank, 33, host=racks.hosts[rank]), 0, 60)
    with pytest.raises(JobError, match="33 leaves below spine1: a switch sums at most 32 children"):
        registry.join(spec(32, 33, host=racks.hosts[32]), 0, 60)


def test_slot_exhaustion_over_racks_names_all_switches_and_who_is_on_any(racks: JobRegistry) -> None:
    across(racks, "home", [1, 2], slots=200)
    across(racks, "wide", [5, 9], slots=100)
    racks.effects()
    across(racks, "late", [3, 6], slots=100)
    (effect,) = racks.effects()
    assert isinstance(effect, GatherFailed)
    assert str(effect.error).startswith(
        "no slots for job 'late' on switches leaf1, leaf2, spine1, spine2: 100 consecutive slots are wanted "
        "of 256; 56 are free (longest run: 56); held by 'home' (200 slots), 'wide' (100 slots)."
    )
    assert racks.pools["spine1"].used == 100


def test_a_job_that_spans_racks_is_adopted_whole_or_not_at_all(racks: JobRegistry) -> None:
    wide = across(racks, "wide", [1, 5], slots=64)
    slots = {name: pool.total for name, pool in racks.pools.items()}
    successor = JobRegistry(slots, LEASE, RACKS)
    across(successor, "taken", [6], slots=10)
    assert not successor.adopt(wide, 0)
    assert successor.pools["leaf1"].used == 0
    unlinked = RACKS.model_copy(update={"links": ()})
    without_spines = JobRegistry(slots, LEASE, unlinked)
    assert not without_spines.adopt(wide, 0)


# ---- a rank that never comes


def test_a_rank_that_never_comes_is_named(registry: JobRegistry) -> None:
    job = registry.join(spec(0, 4), 0, 30)
    registry.join(spec(2, 4), 5, 60)
    registry.tick(29.9)
    assert registry.effects() == []
    registry.tick(30)
    (effect,) = registry.effects()
    assert isinstance(effect, GatherFailed)
    assert effect.job is job
    assert effect.error.refusal is Refusal.LATE
    assert str(effect.error) == (
        "job 'digits' is not complete: ranks 1, 3 of 4 did not join in time; joined: rank 0 (h1), rank 2 "
        "(h3). "
        "Check that the missing workers run, and that they use this controller, job name and size"
    )
    assert registry.jobs() == []


def test_a_rank_that_gave_up_waiting_is_named_and_may_come_back(registry: JobRegistry) -> None:
    job = registry.join(spec(0), 0, 60)
    registry.join(spec(1, 2, "other", HOSTS[9]), 0, 60)
    registry.withdraw(registry.join(spec(1, 3, "third", HOSTS[7]), 0, 5), 1)
    assert [j.name for j in registry.jobs()] == ["digits", "other"]
    registry.withdraw(job, 0)
    assert [j.name for j in registry.jobs()] == ["other"]

    job = registry.join(spec(0, 3), 0, 60)
    registry.join(spec(1, 3), 0, 60)
    registry.withdraw(job, 1)
    assert job.missing() == "ranks 1 (had joined from h2 and went away), 2"
    registry.join(spec(1, 3), 1, 60)
    registry.join(spec(2, 3), 1, 60)
    assert registry.effects() == [Formed(job)]


def test_a_member_that_goes_while_the_switch_is_programmed_stops_the_job(registry: JobRegistry) -> None:
    for rank in range(2):
        job = registry.join(spec(rank), 0, 60)
    registry.effects()
    registry.withdraw(job, 1)
    assert registry.effects() == [
        Stopped(job, "job 'digits' was stopped: rank 1 (h2) went away while the job was being set up")
    ]
    assert registry.programmed() == []


# ---- a job that runs


def test_a_running_job_cannot_be_joined_again(registry: JobRegistry) -> None:
    run(registry)
    with pytest.raises(JobError) as caught:
        registry.join(spec(1, host=HOSTS[5]), 3, 60)
    assert refusal(caught)[0] is Refusal.TAKEN
    assert "job 'digits' is already running, as rank 1 (h2), last heard of 3.0 s ago" in str(caught.value)


def test_the_same_name_can_be_used_again_while_the_last_members_leave(registry: JobRegistry) -> None:
    old = run(registry)
    registry.leave(old.id, 0, "secret", 1)
    new = registry.join(spec(0), 1, 60)
    registry.leave(old.id, 1, "secret", 1)
    assert registry.join(spec(1), 1, 60) is new
    assert new.id != old.id
    assert [type(effect) for effect in registry.effects()] == [Left, Ended, Formed]


def test_heartbeats_keep_a_member(registry: JobRegistry) -> None:
    job = run(registry)
    for second in range(1, 40):
        registry.heartbeat(job, 0, second)
        registry.heartbeat(job, 1, second)
        registry.tick(second + 0.5)
    assert registry.effects() == []


def test_a_silent_member_is_lost_after_its_lease_and_named(registry: JobRegistry) -> None:
    job, bystander = run(registry), run(registry, 2, "other", first_host=4)
    for second in (5, 9.9):
        registry.heartbeat(job, 0, second)
        for rank in range(2):
            registry.heartbeat(bystander, rank, second)
        registry.tick(second)
    assert registry.effects() == []
    registry.tick(10)
    assert registry.effects() == [
        Stopped(job, "job 'digits' was stopped: rank 1 (h2) is lost: it was not heard of for 10.0 s")
    ]
    assert registry.programmed() == [bystander]
    with pytest.raises(JobError) as caught:
        registry.attend(job.id, 0, "secret", 11)
    assert refusal(caught) == (
        Refusal.STOPPED,
        "job 'digits' was stopped: rank 1 (h2) is lost: it was not heard of for 10.0 s",
    )


def test_nobody_is_lost_while_the_controller_itself_slept(registry: JobRegistry) -> None:
    run(registry)
    registry.excuse(50)
    registry.tick(59)
    assert registry.effects() == []
    registry.tick(60)
    assert len(registry.effects()) == 1


def test_a_member_that_never_attends_is_lost_too(registry: JobRegistry) -> None:
    for rank in range(2):
        job = registry.join(spec(rank), 0, 60)
    registry.started(job, 2)
    registry.attend(job.id, 0, "secret", 3)
    registry.effects()
    registry.heartbeat(job, 0, 11)
    registry.tick(12)
    assert registry.effects() == [
        Stopped(job, "job 'digits' was stopped: rank 1 (h2) is lost: it never attended for 10.0 s")
    ]


def test_heartbeats_that_break_off_stop_the_job_at_once_and_free_its_slots(registry: JobRegistry) -> None:
    job = run(registry)
    registry.lose(job, 1)
    assert registry.effects() == [
        Stopped(job, "job 'digits' was stopped: rank 1 (h2) went away without leaving: its connection broke"),
    ]
    assert registry.pools["s1"].used == 0
    registry.lose(job, 0)
    assert registry.effects() == []


def test_leaving_one_by_one_ends_the_job(registry: JobRegistry) -> None:
    job = run(registry, 3)
    registry.leave(job.id, 2, "secret", 1)
    registry.leave(job.id, 2, "secret", 1)
    registry.lose(job, 2)
    assert registry.effects() == [Left(job, job.members[2])]
    registry.leave(job.id, 0, "secret", 2)
    assert registry.programmed() == [job]
    registry.leave(job.id, 1, "secret", 3)
    assert registry.effects() == [Left(job, job.members[0]), Ended(job)]
    assert registry.programmed() == []
    registry.leave(job.id, 1, "secret", 4)
    assert registry.pools["s1"].used == 0


def test_a_member_that_gives_up_stops_the_job_with_its_reason(registry: JobRegistry) -> None:
    job = run(registry, 3)
    with pytest.raises(JobError):
        registry.leave(job.id, 1, "guess", 1, "no memory")
    assert registry.programmed() == [job]
    registry.leave(job.id, 1, "secret", 1, "no memory" * 1000)
    (stopped,) = registry.effects()
    assert isinstance(stopped, Stopped)
    assert (
        stopped.reason.startswith("job 'digits' was stopped: rank 1 (h2) gave up: no memoryno")
        and len(stopped.reason) < 1100
    )
    assert registry.pools["s1"].used == 0
    registry.leave(job.id, 0, "secret", 2, "me too")  # it is over
    assert registry.effects() == []


def test_a_lease_begins_whenever_the_job_runs(registry: JobRegistry) -> None:
    """Programming the switches may take longer than a lease, in which nobody attends."""
    for rank in range(2):
        job = registry.join(spec(rank), 0, 600)
    registry.tick(500)
    registry.started(job, 500)
    registry.tick(509.9)
    assert [type(effect) for effect in registry.effects()] == [Formed]
    registry.tick(510)
    assert registry.effects() == [
        Stopped(job, "job 'digits' was stopped: rank 0 (h1) is lost: it never attended for 10.0 s")
    ]


def test_who_stays_when_others_left_is_told_after_a_lease(registry: JobRegistry) -> None:
    job = run(registry, 3)
    registry.leave(job.id, 2, "secret", 1)
    registry.effects()
    for second in (5.0, 10.9):
        registry.heartbeat(job, 0, second)
        registry.heartbeat(job, 1, second)
        registry.tick(second)
    assert registry.effects() == []
    registry.tick(11)
    assert registry.effects() == [Stopped(job, "job 'digits' was stopped: rank 2 (h3) left the job")]


@pytest.mark.parametrize(
    ("rank", "token", "why", "says"),
    [
        (7, "secret", Refusal.INVALID, "job 'digits' has no rank 7"),
        (0, "secret", Refusal.TAKEN, "rank 0 (h1) of job 'digits' is attending already"),
    ],
)
def test_who_may_not_attend(registry: JobRegistry, rank: int, token: str, why: Refusal, says: str) -> None:
    job = run(registry)
    with pytest.raises(JobError) as caught:
        registry.attend(job.id, rank, token, 1)
    assert refusal(caught) == (why, says)


def test_who_guesses_is_not_told_whether_there_is_such_a_job(registry: JobRegistry) -> None:
    job, over = run(registry), run(registry, 2, "over", first_host=4)
    registry.leave(over.id, 0, "secret", 1, "no memory left")
    for asked in (registry.attend, registry.leave):
        for job_id in (job.id, over.id, job.id ^ 1):
            with pytest.raises(JobError) as caught:
                asked(job_id, 0, "guess", 1)
            says = f"the controller knows no job {job_id:#010x} with this token; was it restarted?"
            assert refusal(caught) == (Refusal.UNKNOWN, says)
    with pytest.raises(JobError, match=r"job 'over' was stopped: .* no memory left") as caught:
        registry.attend(over.id, 1, "secret", 1)
    assert caught.value.refusal is Refusal.STOPPED


def test_half_a_job_keeps_no_place_from_jobs_of_others(registry: JobRegistry) -> None:
    squatter = registry.join(spec(0, 2, "squatter", HOSTS[0], token="theirs"), 0, 86_400)
    with pytest.raises(JobError, match="UDP port 9347 of host h1 is in use by rank 0 of job 'squatter'"):
        registry.join(spec(0, 2, "own", HOSTS[0], token="theirs"), 0, 60)
    job = run(registry)
    registry.join(spec(1, 2, "squatter", HOSTS[6], token="theirs"), 1, 60)  # now it is complete, and late
    (effect,) = registry.effects()
    assert isinstance(effect, GatherFailed)
    assert (effect.job, effect.error.refusal) == (squatter, Refusal.EXHAUSTED)
    assert "UDP port 9347 of host h1 is in use by rank 0 of job 'digits'" in str(effect.error)
    assert registry.jobs() == [job]
    with pytest.raises(JobError, match="is in use by rank 0 of job 'digits'"):
        registry.join(spec(0, 2, "late", HOSTS[0], token="theirs"), 2, 60)


def test_only_a_member_can_leave(registry: JobRegistry) -> None:
    job = run(registry)
    for job_id, rank, token in ((job.id, 0, "guess"), (job.id, 5, "secret"), (job.id ^ 1, 0, "secret")):
        with pytest.raises(JobError):
            registry.leave(job_id, rank, token, 1)
    assert [m.state for m in job.members.values()] == [MemberState.ATTENDING] * 2


def test_a_switch_that_cannot_be_programmed_fails_the_job_and_frees_everything(registry: JobRegistry) -> None:
    for rank in range(2):
        job = registry.join(spec(rank), 0, 60)
    registry.effects()
    error = JobError(Refusal.ABORTED, "switch s1 is on fire")
    registry.fail(job, error)
    assert registry.effects() == [GatherFailed(job, error)]
    assert registry.jobs() == []
    assert registry.pools["s1"].used == 0


def test_stop_all_tells_everybody(registry: JobRegistry) -> None:
    running, waiting = run(registry), registry.join(spec(0, 2, "other", HOSTS[5]), 0, 60)
    registry.stop_all("the controller is shutting down")
    failed, stopped = registry.effects()
    assert isinstance(failed, GatherFailed)
    assert failed.job is waiting
    assert stopped == Stopped(running, "job 'digits' was stopped: the controller is shutting down")
    assert registry.jobs() == []


# ---- whatever happens


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 3)), max_size=80))
def test_slots_are_those_of_the_jobs_whatever_happens(steps: list[tuple[int, int, int]]) -> None:
    """Any order of joins, leaves, losses and time: no slot is lost, shared, or kept by a job that is over."""
    registry = JobRegistry({"s1": 192}, LEASE, ONE)
    now = 0.0
    seen: dict[int, Job] = {}
    for what, number, rank in steps:
        now += 0.5
        job = list(seen.values())[number] if number < len(seen) else None
        try:
            if what <= 2:
                joined = registry.join(
                    spec(rank % 2, 2, f"job{number}", HOSTS[2 * number + rank % 2]), now, 3
                )
                seen[joined.id] = joined
            elif what == 3:
                now += 3
            elif job is not None and rank in job.members and job.state is not JobState.GATHERING:
                if what == 4:
                    registry.leave(job.id, rank, "secret", now)
                elif what == 5:
                    registry.lose(job, rank)
                else:
                    registry.heartbeat(job, rank, now)
        except JobError:
            pass
        registry.tick(now)
        for effect in registry.effects():
            if isinstance(effect, Formed):
                registry.started(effect.job, now)
        held = sorted(job.slots for job in registry.programmed() if job.slots)
        assert registry.pools["s1"].used == sum(piece.count for piece in held)
        assert all(a.end <= b.base for a, b in itertools.pairwise(held))


def test_a_revocable_job_on_a_long_path_gets_a_share_of_many_slots() -> None:
    """It asks for as many as it can use; a switch that has fewer gives what there is."""
    for total, share in ((65_536, 16_384), (1024, 256)):
        registry = JobRegistry({"s1": total}, LEASE, ONE)
        for rank in range(2):
            job = registry.join(spec(rank, slots=16_384, revocable=True), 0, 60)
        assert job.slots is not None
        assert job.slots.count == share


# ---- publishers and subscribers


def test_subscribers_come_and_go_while_the_job_goes_on(registry: JobRegistry) -> None:
    assert registry.publisher(subscriber(1)) is None
    job = published(registry)
    assert registry.publisher(subscriber(1)) is job
    ranks = [subscribed(registry, job, host) for host in (1, 2, 3)]
    assert len(set(ranks)) == 3
    registry.leave(job.id, ranks[0], "secret", 1.0)
    registry.lose(job, ranks[1])
    assert list(job.subscribers) == [ranks[2]]
    assert registry.effects() == [Subscribed(job)] * 2
    assert registry.jobs() == [job]


def test_a_silent_subscriber_is_dropped_and_the_job_goes_on(registry: JobRegistry) -> None:
    job = published(registry)
    rank = subscribed(registry, job, 1)
    registry.heartbeat(job, 0, LEASE)
    registry.tick(LEASE)
    assert registry.effects() == [Subscribed(job)]
    assert not job.subscribers
    registry.heartbeat(job, rank, LEASE)  # one that was on its way
    registry.lose(job, rank)
    assert registry.effects() == []


def test_a_subscription_ends_with_its_publisher(registry: JobRegistry) -> None:
    job = published(registry)
    subscribed(registry, job, 1)
    registry.lose(job, 0)
    (stopped,) = registry.effects()
    assert isinstance(stopped, Stopped) and stopped.job is job
    assert registry.publisher(subscriber(1)) is None


def test_subscribers_that_are_refused(registry: JobRegistry) -> None:
    job = published(registry)
    with pytest.raises(JobError, match="another token"):
        registry.publisher(subscriber(1, token="guess"))
    with pytest.raises(JobError, match="in use by rank 0"):
        registry.subscribe(job, subscriber(0), 0.0)
    elsewhere = HOSTS[5].model_copy(update={"switch": "s2"})
    with pytest.raises(JobError, match="subscribers are on the publisher's switch"):
        registry.subscribe(job, spec(0, 1, "policy", elsewhere, subscribes=True), 0.0)
    run(registry, job="digits", first_host=10)
    with pytest.raises(JobError, match="publishes nothing"):
        registry.publisher(spec(0, 1, "digits", HOSTS[4], subscribes=True))
    assert registry.effects() == []
    assert not job.subscribers


def test_a_publisher_is_one_worker_with_two_slots(registry: JobRegistry) -> None:
    for wrong in (
        spec(0, 2, publishes=True, slots=2),
        spec(0, 1, publishes=True),
    ):
        with pytest.raises(JobError, match="it has one worker"):
            registry.join(wrong, 0.0, 60)
