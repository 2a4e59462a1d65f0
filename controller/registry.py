# SPDX-License-Identifier: Apache-2.0
"""The registry of all jobs: a state machine without I/O.

Calls say what happened and when; the registry answers with effects for its caller to carry out::

    join ... join ─▶ Formed ─(caller programs switches)─▶ started ─▶ heartbeats ... leave ─▶ Ended
                 └▶ GatherFailed (a rank never came)             └▶ Stopped (a member was lost)

A job that finds too few slots waits a moment, while the controller asks the members of revocable jobs for
theirs (``Reclaim``). Idle members leave, and busy ones say that they are busy.

A job whose hosts are all on one switch has its slots there; one that spans racks, on all its leaves and on
every spine of their pods, and one that spans pods on every core, too: so slots can move from one of them to
another.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from weir.agent_service import MOST_SLOTS
from weir.controller.job_tree import JobTree, refuse_misfit
from weir.controller.jobs import (
    FIRST_SUBSCRIBER,
    MOST_SUBSCRIBERS,
    Job,
    JobError,
    JobState,
    JoinSpec,
    Member,
    MemberState,
    Refusal,
    new_job_id,
    refuse_disagreement,
    same_token,
)
from weir.controller.limits import shortened
from weir.controller.slots import (
    LEAST_SLOTS,
    SlotExhaustedError,
    SlotPool,
    SlotRange,
    take,
    take_share,
)
from weir.controller.wiring import Wiring

_MOST_WORDS = 1000  # characters of a member's reason
_TOMBSTONES = 1024  # jobs that are over whose end can still be asked for
RECLAIM_S = 2.0  # what the members of revocable jobs get to answer
_ENOUGH = 64  # slots with which a job that does not say how many it wants asks nobody for more
_SHOWN = 5  # jobs that an error names as holders of slots


@dataclass(frozen=True)
class Formed:
    """An effect: all have joined and slots are allocated. Program the switches, then call ``started``."""

    job: Job


@dataclass(frozen=True)
class GatherFailed:
    """An effect: the job will not be. Tell ``error`` to those that wait for it; ``ranges``, which slots are
    whose, to nobody but the log.
    """

    job: Job
    error: JobError
    ranges: str = ""


@dataclass(frozen=True)
class Left:
    """An effect: a member left cleanly while others are still there."""

    job: Job
    member: Member


@dataclass(frozen=True)
class Stopped:
    """An effect: the job is over because of ``reason``. Remove its entries and tell its members."""

    job: Job
    reason: str


@dataclass(frozen=True)
class Ended:
    """An effect: all members have left. Remove the job's entries."""

    job: Job


@dataclass(frozen=True)
class Reclaim:
    """An effect: others need the slots of a revocable job. Ask its members, who leave or call ``keep``."""

    job: Job


@dataclass(frozen=True)
class Subscribed:
    """An effect: the subscribers of a job that publishes are others now. Program the switches."""

    job: Job


Effect: TypeAlias = Formed | GatherFailed | Left | Stopped | Ended | Reclaim | Subscribed


@dataclass(frozen=True)
class _Tombstone:
    token: str = field(repr=False)
    reason: str


class JobRegistry:
    """All jobs of one controller. Not thread-safe; times are seconds of any monotonic clock.

    Args:
        slots: number of slots of each switch, by name.
        lease_s: how long a member may be silent.
        topology: how the switches are linked.
    """

    def __init__(self, slots: dict[str, int], lease_s: float, topology: Wiring) -> None:
        self.lease_s = lease_s
        self._topology = topology
        self.pools = {name: SlotPool(total) for name, total in slots.items()}
        self._gathering: dict[str, Job] = {}
        self._jobs: dict[int, Job] = {}  # programming and running
        self._tombstones: OrderedDict[int, _Tombstone] = OrderedDict()
        self._effects: list[Effect] = []
        self._numbers = itertools.count(1)

    def jobs(self) -> list[Job]:
        """Return all jobs, oldest first, gathering ones last."""
        return [*self._jobs.values(), *self._gathering.values()]

    def programmed(self) -> list[Job]:
        """Return the jobs that switches must have entries for."""
        return list(self._jobs.values())

    def effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # ---- joining

    def join(self, spec: JoinSpec, now: float, timeout_s: float) -> Job:
        """Add a worker to the job it names, which is created if need be.

        The whole gathering fails when the first of its members times out.

        Raises:
            JobError: the request is refused; nothing has changed.
        """
        spec.check(self.pools[spec.host.switch].total)
        self.refuse_wrong_token(spec.job, spec.token)
        if spec.publishes and self._topology.switch(spec.host.switch).bfrt:
            raise JobError(
                Refusal.INVALID,
                f"job {spec.job!r} publishes, and the program of switch {spec.host.switch} does not send to "
                "subscribers",
            )
        job = self._gathering.get(spec.job)
        if job is None:
            self._refuse_running(spec, now)
            job = self._new_job(spec, now + timeout_s)
        else:
            refuse_disagreement(job, spec)
        member = Member(spec.rank, spec.host, spec.udp_port, spec.process, ranks=spec.ranks)
        self._refuse_taken_place(spec, member)
        self._add(job, member)
        job.withdrawn.pop(spec.rank, None)
        job.deadline = min(job.deadline, now + timeout_s)
        self._gathering[spec.job] = job
        if len(job.members) == job.size:
            self._form(job, now)
        return job

    def publisher(self, spec: JoinSpec) -> Job | None:
        """Return the running job that a subscriber wants; None: there is none yet.

        Raises:
            JobError: it has another token, or publishes nothing.
        """
        spec.check(self.pools[spec.host.switch].total)
        self.refuse_wrong_token(spec.job, spec.token)
        for job in self._jobs.values():
            if job.name == spec.job and job.state is JobState.RUNNING and not job.departed():
                if not job.publishes:
                    raise JobError(Refusal.INVALID, f"job {spec.job!r} publishes nothing")
                return job
        return None

    def subscribe(self, job: Job, spec: JoinSpec, now: float) -> int:
        """Add a subscriber to a job of ``publisher``; return its rank there.

        Raises:
            JobError: it cannot be reached from the publisher, its port is another process's, or there are
                too many.
        """
        if spec.host.switch != job.first.host.switch:
            raise JobError(
                Refusal.INVALID,
                f"host {spec.host.name} is on switch {spec.host.switch}, and {job.first}, which publishes, "
                f"on {job.first.host.switch}: subscribers are on the publisher's switch",
            )
        if len(job.subscribers) >= MOST_SUBSCRIBERS:
            raise JobError(
                Refusal.EXHAUSTED, f"job {job.name!r} has {MOST_SUBSCRIBERS} subscribers, which is the most"
            )
        rank = FIRST_SUBSCRIBER + job.subscribed
        member = Member(rank, spec.host, spec.udp_port, spec.process, last_heard=now)
        _refuse_taken(spec.job, member, self._jobs.values())
        job.subscribed += 1
        job.subscribers[rank] = member
        self._effects.append(Subscribed(job))
        return rank

    def _unsubscribe(self, job: Job, rank: int) -> None:
        del job.subscribers[rank]
        self._effects.append(Subscribed(job))

    def withdraw(self, job: Job, rank: int) -> None:
        """Take back the join of a worker that has gone while it waited."""
        if job.state is JobState.GATHERING and self._gathering.get(job.name) is job:
            member = job.members.pop(rank)
            job.withdrawn[rank] = member.host.name
            job.waits_for = None
            if not job.members:
                del self._gathering[job.name]
        elif job.id in self._jobs:
            self._stop(job, f"{job.members[rank]} went away while the job was being set up")

    def started(self, job: Job, now: float) -> None:
        """Let the members' leases begin: the switches are programmed."""
        job.state = JobState.RUNNING
        for member in job.members.values():
            member.last_heard = now

    def adopt(self, job: Job, now: float) -> bool:
        """Take over a job that runs already; its members have a lease's time to send heartbeats again.

        False if its slots are not there or another job has them: then it is not taken.
        """
        switches = self._switches(job)
        if not JobTree.of(self._topology, job).linked:
            return False
        if job.slots is None or not all(self.pools[name].can_claim(job.slots) for name in switches):
            return False
        job.switches = switches
        for name in switches:
            self.pools[name].claim(job.slots)
        job.number = next(self._numbers)
        self._jobs[job.id] = job
        self.started(job, now)
        if job.departed():
            job.ends_at = now + self.lease_s
        return True

    # ---- being a member

    def attend(self, job_id: int, rank: int, token: str, now: float) -> Job:
        """Admit the heartbeats of a member, and return its job.

        Raises:
            JobError: no such job with this token, no such member, or the job is over (the message says why).
        """
        job, member = self._member(job_id, rank, token)
        if member.state is not MemberState.JOINED:
            raise JobError(Refusal.TAKEN, f"{member} of job {job.name!r} {_HAS[member.state]}")
        member.state = MemberState.ATTENDING
        member.last_heard = now
        return job

    def heartbeat(self, job: Job, rank: int, now: float) -> None:
        """Note that a member is alive."""
        if (member := job.member(rank)) is not None:
            member.last_heard = now

    def lose(self, job: Job, rank: int) -> None:
        """Stop the job of a member whose heartbeats broke off, unless it had left or the job is over."""
        if rank in job.subscribers:
            self._unsubscribe(job, rank)
            return
        member = job.members.get(rank)
        if member is not None and job.id in self._jobs and member.state is not MemberState.LEFT:
            self._stop(job, f"{member} went away without leaving: its connection broke")

    def keep(self, job: Job) -> None:
        """Note that a revocable job whose members were asked for its slots needs them.

        Not once one of them has left: the others are about to, whatever they said before they knew.
        """
        if job.id in self._jobs and not job.departed():
            self._answered(job)

    def leave(
        self, job_id: int, rank: int, token: str, now: float, reason: str = "", reductions: int = 0
    ) -> None:
        """Let a member go. Leaving a job that is over, or leaving twice, is fine.

        reason: why the member gives up, which stops the job; empty: it leaves cleanly. reductions: of a
        revocable job, how many it has done.

        Raises:
            JobError: no such job with this token, or no such member.
        """
        if self._over(job_id, token) is not None:
            return
        job, member = self._member(job_id, rank, token)
        if rank in job.subscribers:
            self._unsubscribe(job, rank)
            return
        if member.state is MemberState.LEFT:
            return
        if reason:
            self._stop(job, f"{member} gave up: {shortened(reason, _MOST_WORDS)}")
            return
        member.state, member.reductions = MemberState.LEFT, reductions
        if len(job.departed()) == job.size:
            self._forget(job, "all its members have left")
            self._effects.append(Ended(job))
            return
        job.ends_at = job.ends_at or now + self.lease_s
        self._effects.append(Left(job, member))

    # ---- time

    def tick(self, now: float) -> None:
        """Let deadlines and leases run out."""
        for job in list(self._gathering.values()):
            if job.waits_for is not None:
                if now >= min(job.deadline, job.waits_until):
                    self._allocate(job)
            elif now >= job.deadline:
                self._gather_late(job)
        for job in list(self._jobs.values()):
            if job.state is JobState.RUNNING:
                self._check_leases(job, now)

    def excuse(self, seconds: float) -> None:
        """Extend all leases by a time in which the controller itself slept, heartbeats unread."""
        for job in self._jobs.values():
            for member in job.everybody():
                member.last_heard += seconds

    def stop_all(self, reason: str) -> None:
        """Stop every job: the controller is going."""
        for job in list(self._gathering.values()):
            del self._gathering[job.name]
            self._effects.append(GatherFailed(job, JobError(Refusal.ABORTED, reason)))
        for job in list(self._jobs.values()):
            self._stop(job, reason)

    def fail(self, job: Job, error: JobError) -> None:
        """Give up a formed job whose switches could not be programmed."""
        if job.id in self._jobs:
            self._forget(job, str(error))
            self._effects.append(GatherFailed(job, error))

    # ---- inside

    def _member(self, job_id: int, rank: int, token: str) -> tuple[Job, Member]:
        """Return a member, to who has the token. Others are not told whether there is such a job."""
        if (reason := self._over(job_id, token)) is not None:
            raise JobError(Refusal.STOPPED, reason)
        job = self._jobs.get(job_id)
        if job is None or not job.knows(token):
            raise JobError(
                Refusal.UNKNOWN,
                f"the controller knows no job {job_id:#010x} with this token; was it restarted?",
            )
        member = job.member(rank)
        if member is None:
            raise JobError(Refusal.INVALID, f"job {job.name!r} has no rank {rank}")
        return job, member

    def _over(self, job_id: int, token: str) -> str | None:
        """Return why a job is over, to who has its token; None if it is not, or to others."""
        found = self._tombstones.get(job_id)
        return found.reason if found is not None and same_token(found.token, token) else None

    def _new_job(self, spec: JoinSpec, deadline: float) -> Job:
        taken = {job.id for job in self.jobs()} | set(self._tombstones)
        return Job(
            id=new_job_id(taken),
            name=spec.job,
            token=spec.token,
            size=spec.size,
            slots_wanted=spec.slots,
            revocable=spec.revocable,
            publishes=spec.publishes,
            deadline=deadline,
            number=next(self._numbers),
        )

    def name_of(self, job_id: int) -> str:
        """Return the name of a job that runs; "" if none has this id."""
        job = self._jobs.get(job_id)
        return job.name if job is not None else ""

    def refuse_wrong_token(self, name: str, token: str) -> None:
        """Raise JobError for a token that is not that of the job of this name, where there is one."""
        for job in self.jobs():
            if job.name == name and not job.knows(token):
                raise JobError(
                    Refusal.DENIED,
                    f"job {name!r} already exists with another token; give all its workers the same token, "
                    f"or choose another name for your job",
                )

    def _refuse_running(self, spec: JoinSpec, now: float) -> None:
        """Refuse a newcomer while a job of the name runs in full. Once that is ending, it is the
        successor.
        """
        for job in self._jobs.values():
            if job.name != spec.job or job.departed():
                continue
            member = job.members.get(spec.rank)
            who = (
                f"as {member}, last heard of {now - member.last_heard:.1f} s ago"
                if member
                else f"with {job.size} workers"
            )
            raise JobError(
                Refusal.TAKEN,
                f"job {spec.job!r} is already running, {who}; join again after it ends (a silent worker is "
                f"given up after {self.lease_s:g} s)",
            )

    def _refuse_taken_place(self, spec: JoinSpec, member: Member) -> None:
        """Refuse a newcomer whose place another process has.

        A job that is not complete keeps a place only from jobs with the same token, so that nobody can keep
        others' from running by half a job.
        """
        gathering = [job for job in self._gathering.values() if job.knows(spec.token)]
        _refuse_taken(spec.job, member, [*self._jobs.values(), *gathering])

    def _add(self, job: Job, member: Member) -> None:
        """Add a member, unless the job's tree could not be then."""
        job.members[member.rank] = member
        try:
            refuse_misfit(self._topology, job, member)
        except JobError:
            del job.members[member.rank]
            raise

    def _switches(self, job: Job) -> tuple[str, ...]:
        """Return the switches on which the job needs slots."""
        return (*job.leaves, *JobTree.of(self._topology, job).joining)

    def _form(self, job: Job, now: float) -> None:
        """Give a complete job its slots, or ask others for theirs first where it would get few."""
        try:
            for member in job.members.values():
                _refuse_taken(job.name, member, self._jobs.values())
        except JobError as error:  # a job of another token was complete before
            del self._gathering[job.name]
            self._effects.append(GatherFailed(job, error))
            return
        holders = [] if self._has_enough(job) else self._revocable(self._switches(job))
        if not holders:
            self._allocate(job)
            return
        job.waits_for = {holder.id for holder in holders}
        job.waits_until = now + RECLAIM_S
        self._effects += map(Reclaim, holders)

    def _has_enough(self, job: Job) -> bool:
        """Return whether enough slots for a job are free now."""
        switches = self._switches(job)
        pools = [self.pools[name] for name in switches]
        aligned = bool(self._topology.max_lanes(switches))
        try:
            found = _take(pools, job, aligned)
        except SlotExhaustedError:
            return False
        for pool in pools:
            pool.give_back(found)
        return not job.takes_share or found.count >= min(_ENOUGH, pools[0].total // 4)

    def _revocable(self, switches: tuple[str, ...]) -> list[Job]:
        """Return the jobs with slots on any of these switches that may give them back."""
        return [
            job
            for job in self._jobs.values()
            if job.revocable and job.state is JobState.RUNNING and set(job.switches) & set(switches)
        ]

    def _answered(self, holder: Job) -> None:
        """Give jobs that wait for slots theirs, if they waited for this holder last, which needs its own or
        is over, or if enough are free now.
        """
        for job in list(self._gathering.values()):
            if job.waits_for is not None:
                job.waits_for.discard(holder.id)
                if not job.waits_for or self._has_enough(job):
                    self._allocate(job)

    def _allocate(self, job: Job) -> None:
        """Give a complete job its slots, whatever there is; or give the job up."""
        del self._gathering[job.name]
        job.waits_for = None
        switches = self._switches(job)
        try:
            for member in job.members.values():
                _refuse_taken(job.name, member, self._jobs.values())
            pools = [self.pools[name] for name in switches]
            job.slots = _take(pools, job, aligned=bool(self._topology.max_lanes(switches)))
        except JobError as error:
            self._effects.append(GatherFailed(job, error))
            return
        except SlotExhaustedError as error:
            self._effects.append(self._without_slots(job, switches, error))
            return
        job.switches = switches
        job.state = JobState.PROGRAMMING
        self._jobs[job.id] = job
        self._effects.append(Formed(job))

    def _without_slots(self, job: Job, switches: tuple[str, ...], error: SlotExhaustedError) -> GatherFailed:
        """Return the failure of a job for which there are no slots: who has them, and what to do."""
        others = [j for j in self._jobs.values() if j.slots and set(j.switches) & set(switches)]
        largest = sorted(others, key=_slots, reverse=True)
        holders = ", ".join(f"{j.name!r} ({_slots(j)} slots)" for j in largest[:_SHOWN])
        if more := largest[_SHOWN:]:
            holders += f" and {len(more)} more jobs ({sum(map(_slots, more))} slots)"
        ranges = f"free: {', '.join(map(str, error.free)) or 'none'}; held: " + ", ".join(
            f"{j.name!r} {j.slots}" for j in others
        )
        where = f"switch {switches[0]}" if len(switches) == 1 else f"switches {', '.join(switches)}"
        message = (
            f"no slots for job {job.name!r} on {where}: {error}; held by {holders or 'nobody'}. "
            "Ask for fewer (GroupOptions(slots=N)), wait until another job is over, or compile the switch's "
            "program with more (SLOTS in p4src/v1model/config.p4, then python p4src/build.py)"
        )
        return GatherFailed(job, JobError(Refusal.EXHAUSTED, message), ranges)

    def _gather_late(self, job: Job) -> None:
        del self._gathering[job.name]
        there = ", ".join(map(str, _by_rank(job.members.values())))
        message = (
            f"job {job.name!r} is not complete: {job.missing()} of {job.size} did not join in time; "
            f"joined: {there}. Check that the missing workers run, and that they use this controller, job "
            "name and size"
        )
        self._effects.append(GatherFailed(job, JobError(Refusal.LATE, message)))

    def _check_leases(self, job: Job, now: float) -> None:
        for member in _by_rank(job.members.values()):
            silent = now - member.last_heard
            if member.state is not MemberState.LEFT and silent >= self.lease_s:
                did = "never attended" if member.state is MemberState.JOINED else "was not heard of"
                self._stop(job, f"{member} is lost: it {did} for {silent:.1f} s")
                return
        for rank, subscriber in list(job.subscribers.items()):
            if now - subscriber.last_heard >= self.lease_s:
                self._unsubscribe(job, rank)
        if job.ends_at is not None and now >= job.ends_at:
            names = ", ".join(map(str, _by_rank(job.departed())))
            self._stop(job, f"{names} left the job")

    def _stop(self, job: Job, reason: str) -> None:
        sentence = f"job {job.name!r} was stopped: {reason}"
        self._forget(job, sentence)
        self._effects.append(Stopped(job, sentence))

    def _forget(self, job: Job, reason: str) -> None:
        del self._jobs[job.id]
        if job.slots is not None:
            for name in job.switches:
                self.pools[name].give_back(job.slots)
        self._tombstones[job.id] = _Tombstone(job.token, reason)
        while len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)
        self._answered(job)


def _slots(job: Job) -> int:
    return job.slots.count if job.slots is not None else 0


def _take(pools: list[SlotPool], job: Job, aligned: bool) -> SlotRange:
    """Take a job's slots. SlotExhaustedError when there are none."""
    if not job.takes_share:
        return take(pools, job.slots_wanted, aligned=aligned)
    return take_share(pools, job.slots_wanted or MOST_SLOTS, LEAST_SLOTS, aligned=aligned)


_HAS = {MemberState.ATTENDING: "is attending already", MemberState.LEFT: "has left"}


def _refuse_taken(name: str, newcomer: Member, jobs: Iterable[Job]) -> None:
    """Refuse a shared-memory port, or a UDP port of a host, that another process has for one of ``jobs``.

    A process may use its port for several jobs, but for one rank of each.
    """
    host = newcomer.host
    for job in jobs:
        for member in job.everybody():
            if member.host.name != host.name or member.state is MemberState.LEFT:
                continue
            if newcomer.process and member.process == newcomer.process and job.name != name:
                continue
            if host.shm is not None:
                place = f"shared-memory port {host.port} of switch {host.switch}"
            elif member.udp_port == newcomer.udp_port:
                place = f"UDP port {newcomer.udp_port} of host {host.name}"
            else:
                continue
            raise JobError(
                Refusal.EXHAUSTED,
                f"{place} is in use by rank {member.rank} of job {job.name!r}; "
                f"put rank {newcomer.rank} of job {name!r} on another host or port, or wait",
            )


def _by_rank(members: Iterable[Member]) -> list[Member]:
    return sorted(members, key=lambda member: member.rank)
