# SPDX-License-Identifier: Apache-2.0
"""Jobs, their members, and the requests to join that are refused. No I/O, no clock."""

import hmac
import secrets
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from weir.agent_service import MOST_SLOTS, PUBLISHER_SLOTS
from weir.controller.slots import SlotRange
from weir.controller.wiring import Host
from weir.wire.definition import KEY_BYTES, MAX_WORKERS, UDP_PORT, VERSION

FIRST_SUBSCRIBER: Final = MAX_WORKERS
"""The rank of a job's first subscriber; the next ones count on."""

MOST_SUBSCRIBERS: Final = 256


class Refusal(Enum):
    """The reasons for refusing a request; each is one gRPC status."""

    INVALID = "invalid argument"
    DENIED = "permission denied"
    TAKEN = "already exists"
    EXHAUSTED = "resource exhausted"
    UNKNOWN = "not found"
    LATE = "deadline exceeded"
    STOPPED = "failed precondition"
    ABORTED = "aborted"


class JobError(Exception):
    """A request that cannot be granted. The message is for the person who made it."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


def takes_share(slots: int, revocable: bool) -> bool:
    """Return whether a job that wants this many slots gets a share of the free ones, up to these."""
    return not slots or (revocable and slots > MOST_SLOTS)


@dataclass(frozen=True)
class JoinSpec:
    """The request of one worker to join a job.

    ``slots`` 0: as there are, up to MOST_SLOTS; more than MOST_SLOTS of a revocable
    job: as there are, up to this many. ``process`` names the operating system's process, for jobs that share
    one; empty: unknown. ``wire_version``: of the packets that it sends; 0: older than 3.
    ``ranks``: those of a process group that the worker is, for messages; none: ``rank``. ``keyed``: it makes
    the check of its packets with the job's key. ``revocable``: the job gives its slots back when others need
    them. ``publishes``: a job of one worker that sends to subscribers. ``subscribes``: the worker is one of
    these; ``size`` and ``rank`` mean nothing.
    """

    job: str
    token: str
    size: int
    rank: int
    host: Host
    udp_port: int = UDP_PORT
    slots: int = 0
    process: str = ""
    wire_version: int = VERSION
    ranks: tuple[int, ...] = ()
    keyed: bool = True
    revocable: bool = False
    publishes: bool = False
    subscribes: bool = False

    def check(self, total_slots: int) -> None:
        """Refuse what can never be granted, whatever else is going on."""
        if self.wire_version != VERSION:
            spoken = f"wire version {self.wire_version}" if self.wire_version else "a wire version before 3"
            older = "on that host" if self.wire_version < VERSION else "for the controller"
            raise JobError(
                Refusal.INVALID,
                f"rank {self.rank} of job {self.job!r} speaks {spoken}, the controller and the switches "
                f"wire version {VERSION}, and packets of two versions do not mix: "
                f"install the newer Weir {older}, too",
            )
        if not self.keyed:
            raise JobError(
                Refusal.INVALID,
                f"rank {self.rank} of job {self.job!r} does not make the check of its packets with the job's "
                "key, as all workers must: install the newer Weir on that host, too",
            )
        if not self.job:
            raise JobError(Refusal.INVALID, "the job has no name")
        if self.publishes and (self.size != 1 or self.slots != PUBLISHER_SLOTS or self.revocable):
            raise JobError(
                Refusal.INVALID,
                f"job {self.job!r} publishes: it has one worker, and {PUBLISHER_SLOTS} slots that it keeps",
            )
        if not 1 <= self.size <= MAX_WORKERS:
            raise JobError(
                Refusal.INVALID,
                f"job {self.job!r} has {self.size} workers; a job has 1 to {MAX_WORKERS}",
            )
        if not 0 <= self.rank < self.size:
            raise JobError(
                Refusal.INVALID, f"rank {self.rank} is not one of the {self.size} ranks of job {self.job!r}"
            )
        if not 0 < self.udp_port < 1 << 16:
            raise JobError(Refusal.INVALID, f"{self.udp_port} is not a UDP port")
        if self.slots > total_slots and not takes_share(self.slots, self.revocable):
            raise JobError(
                Refusal.EXHAUSTED,
                f"job {self.job!r} asks for {self.slots} slots; switch {self.host.switch} has {total_slots}",
            )


class MemberState(Enum):
    """The stages of a membership."""

    JOINED = "joined"
    ATTENDING = "attending"
    LEFT = "left"


@dataclass
class Member:
    """One worker of a job: its place in the network, and when it was last heard of."""

    rank: int
    host: Host
    udp_port: int
    process: str = ""
    state: MemberState = MemberState.JOINED
    last_heard: float = 0.0
    ranks: tuple[int, ...] = ()
    reductions: int = 0  # that it had done when it left a revocable job

    def __str__(self) -> str:
        ranks = self.ranks or (self.rank,)
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} ({self.host.name})"


def same_token(one: str, other: str) -> bool:
    """Return whether two tokens are the same, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


class JobState(Enum):
    """The stages of a job. A job that is over is forgotten."""

    GATHERING = "gathering"
    PROGRAMMING = "programming"
    RUNNING = "running"


@dataclass
class Job:
    """One job. Its id is what travels on the wire; the name is what its workers agreed on.

    ``key`` is the secret of this one run, which its members get when all have joined. Nobody else is told,
    and it is not remembered: who joins later joins another job.
    """

    id: int
    name: str
    token: str = field(repr=False)
    size: int
    slots_wanted: int = 0  # 0: as there are
    revocable: bool = False  # it gives its slots back when others need them
    publishes: bool = False
    subscribers: dict[int, Member] = field(default_factory=dict)  # by rank, from FIRST_SUBSCRIBER on
    subscribed: int = 0  # how many there have been
    deadline: float = 0.0
    members: dict[int, Member] = field(default_factory=dict)
    state: JobState = JobState.GATHERING
    slots: SlotRange | None = None
    switches: tuple[str, ...] = ()  # where it has its slots: its leaves, and the spines between them
    parents: frozenset[str] | None = None  # spines whose results its leaves accept; None: not decided
    uplinks: frozenset[str] | None = (
        None  # spines its leaves send to: ``parents``, but for a moment in failover
    )
    withdrawn: dict[int, str] = field(default_factory=dict)  # rank -> host of who joined and went away
    ends_at: float | None = None  # set when the first member leaves
    number: int = 0  # of the controller's jobs, in the order in which it heard of them
    waits_for: set[int] | None = (
        None  # jobs asked for slots, while it is complete and has none; None: none asked
    )
    waits_until: float = 0.0
    asked_by: str = ""  # the address of the member that joined last; "": it was remembered
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False, compare=False)

    @property
    def takes_share(self) -> bool:
        """Return whether it gets a share of the free slots instead of exactly as many as it wants."""
        return takes_share(self.slots_wanted, self.revocable)

    def member(self, rank: int) -> Member | None:
        """Return the worker or subscriber of this rank."""
        return self.members.get(rank) or self.subscribers.get(rank)

    def everybody(self) -> list[Member]:
        """Return workers and subscribers."""
        return [*self.members.values(), *self.subscribers.values()]

    def knows(self, token: str) -> bool:
        """Return whether this is the job's token, in constant time."""
        return same_token(self.token, token)

    def missing(self) -> str:
        """Describe the ranks that have not joined."""
        ranks = [rank for rank in range(self.size) if rank not in self.members]
        words = [
            f"{rank} (had joined from {self.withdrawn[rank]} and went away)"
            if rank in self.withdrawn
            else f"{rank}"
            for rank in ranks
        ]
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}"

    @property
    def first(self) -> Member:
        """Member of the lowest rank of those that have joined."""
        return self.members[min(self.members)]

    @property
    def spans_racks(self) -> bool:
        """Return whether its members are on several switches."""
        return len(self.leaves) > 1

    @property
    def leaves(self) -> tuple[str, ...]:
        """Switches that its members are on, in the order of their lowest ranks."""
        return tuple(dict.fromkeys(member.host.switch for _rank, member in sorted(self.members.items())))

    def departed(self) -> list[Member]:
        """Return the members that have left."""
        return [member for member in self.members.values() if member.state is MemberState.LEFT]


def new_job_id(taken: set[int]) -> int:
    """Return a random non-zero 32-bit number that is not in ``taken``."""
    while True:
        job_id = secrets.randbits(32)
        if job_id and job_id not in taken:
            return job_id


def refuse_disagreement(job: Job, spec: JoinSpec) -> None:
    """Refuse a worker that contradicts the others of a gathering job, or asks for a rank that is taken."""
    says = f"{job.first} says it has"
    if spec.size != job.size:
        raise JobError(
            Refusal.INVALID,
            f"rank {spec.rank} says job {job.name!r} has {spec.size} workers, but {says} {job.size}",
        )
    if spec.slots != job.slots_wanted:
        raise JobError(
            Refusal.INVALID,
            f"rank {spec.rank} says job {job.name!r} has {spec.slots or 'any number of'} slots, "
            f"but {says} {job.slots_wanted or 'any number'}",
        )
    if spec.revocable != job.revocable:
        kinds = ("keeps its slots", "gives its slots back when others need them")
        raise JobError(
            Refusal.INVALID,
            f"rank {spec.rank} says job {job.name!r} {kinds[spec.revocable]}, but "
            f"{job.first} says it {kinds[job.revocable]}",
        )
    if spec.rank in job.members:
        raise JobError(
            Refusal.TAKEN,
            f"rank {spec.rank} of job {job.name!r} has already joined, "
            f"from {job.members[spec.rank].host.name}",
        )
