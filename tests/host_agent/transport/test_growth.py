# SPDX-License-Identifier: Apache-2.0
"""Workers change between their base slots and an extension at the same reduction, whatever comes between.

The growth of each worker and the controller's registry are the real ones; what is between them is a model:
each reduction completes for a worker when all have contributed to it, and news arrive late and in any order.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.controller.jobs import Job, JoinSpec
from weir.controller.registry import Ended, Formed, GatherFailed, JobRegistry, Left, Reclaim, Stopped
from weir.controller.topology import single_switch
from weir.host_agent.transport.growth import BASE_SLOTS, IDLE_S, Growth, LeftTooSoonError, Step

SIZE, GROUPS = 3, 2
TOPOLOGY = single_switch(SIZE, "127.0.0.1:1")
SLOTS = GROUPS * BASE_SLOTS + 20  # an extension has 16, so that there is one at a time
LEASE_S = 12.0
SMALL, LARGE = 64, 1 << 20

# ---- one worker


def test_small_reductions_never_want_more() -> None:
    growth = Growth(BASE_SLOTS)
    assert not any(growth.wants_more(BASE_SLOTS * 256) for _ in range(10_000))


def test_reductions_that_are_somewhat_large_want_more_after_a_while() -> None:
    growth = Growth(BASE_SLOTS)
    wanted = [growth.wants_more(3 * BASE_SLOTS * 256) for _ in range(20)]
    assert wanted.index(True) == 15


def test_who_was_refused_asks_again_later_and_later() -> None:
    growth = Growth(BASE_SLOTS)
    asked = []
    for number in range(3000):
        if growth.wants_more(33 * BASE_SLOTS * 256):
            asked.append(number)
            growth.refuse()
    assert asked[:3] == [0, 8, 72]
    assert growth.attempts == len(asked)


def test_a_worker_in_the_next_reduction_makes_it_on_the_base_slots() -> None:
    growth = Growth(BASE_SLOTS)
    growth.extend(0.0)
    assert growth.place_next()
    assert not growth.end(1.0, completed=True)
    assert growth.place_next()
    assert growth.withdrawn(1) is Step.ABORT
    assert growth.end(2.0, completed=False)
    assert growth.shrink() == 1
    assert not growth.place_next()
    assert growth.withdrawn(1) is Step.NOTHING  # of the next one


def test_a_worker_in_the_last_reduction_completes_it() -> None:
    growth = Growth(BASE_SLOTS)
    growth.extend(0.0)
    growth.place_next()
    assert growth.withdrawn(1) is Step.NOTHING
    assert growth.end(1.0, completed=True)
    assert growth.shrink() == 1


def test_only_an_idle_worker_gives_slots_back() -> None:
    growth = Growth(BASE_SLOTS)
    assert not growth.reclaim(0.0)
    growth.extend(0.0)
    assert not growth.reclaim(2 * IDLE_S)
    growth.place_next()
    assert not growth.reclaim(2 * IDLE_S)
    growth.end(2 * IDLE_S, completed=True)
    assert not growth.reclaim(2.5 * IDLE_S)
    assert growth.reclaim(3 * IDLE_S)


@pytest.mark.parametrize("reductions", [0, 3])
def test_what_no_worker_can_have_done_is_refused(reductions: int) -> None:
    growth = Growth(BASE_SLOTS)
    growth.extend(0.0)
    growth.place_next()
    growth.end(1.0, completed=True)
    growth.place_next()
    with pytest.raises(LeftTooSoonError):
        growth.withdrawn(reductions)


# ---- several workers and groups, and the controller


@dataclass
class Network:
    """The controller, the workers by (group, rank), and what has been contributed to which reduction."""

    registry: JobRegistry = field(default_factory=lambda: JobRegistry({"s1": SLOTS}, LEASE_S, TOPOLOGY))
    now: float = 0.0
    workers: dict[tuple[int, int], "Worker"] = field(default_factory=dict)
    sent: dict[tuple[Any, ...], dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    bases: dict[int, Job] = field(default_factory=dict)

    def begin(self, programs: list[list[int]]) -> None:
        for group, sizes in enumerate(programs):
            for rank in range(SIZE):
                self.workers[group, rank] = Worker(self, group, rank, sizes)
                self.bases[group] = self.join(group, rank, f"g{group}", slots=BASE_SLOTS)
        for worker in self.workers.values():
            worker.news.clear()

    def join(self, group: int, rank: int, name: str, **more: Any) -> Job:
        spec = JoinSpec(name, "secret", SIZE, rank, TOPOLOGY.hosts[rank], process=f"p{rank}", **more)
        job = self.registry.join(spec, self.now, 60.0)
        self.react()
        return job

    def react(self) -> None:
        for effect in self.registry.effects():
            match effect:
                case Formed(job):
                    self.registry.started(job, self.now)
                    for rank in job.members:
                        self.registry.attend(job.id, rank, "secret", self.now)
                    self.tell(job, "joined", job)
                case GatherFailed(job):
                    self.tell(job, "joined", None)
                case Reclaim(job):
                    self.tell(job, "reclaim", job)
                case Left(job, member):
                    self.tell(job, "withdrawn", (job, member.reductions))
                case Stopped(job):
                    self.tell(job, "stopped", job)
                case Ended():
                    pass

    def tell(self, job: Job, what: str, about: Any) -> None:
        group = int(job.name.removeprefix("g").partition("+")[0])
        for rank in range(SIZE):
            self.workers[group, rank].news.append((what, about, self.now))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; news, and what follows at once, take less than a lease, or a member is lost."""
        self.now += seconds
        for worker in self.workers.values():
            while worker.news and self.now - worker.news[0][2] > LEASE_S / 2:
                worker.hear()
            if worker.growth.busy and worker.growth.overtaken:  # both ways out take a fraction of a second
                worker.step()
        for job in self.registry.programmed():
            for rank in job.members:
                self.registry.heartbeat(job, rank, self.now)
        self.registry.tick(self.now)
        self.react()

    def check(self) -> None:
        held = sorted(job.slots for job in self.registry.programmed() if job.slots)
        assert all(a.end <= b.base for a, b in itertools.pairwise(held))
        for worker in self.workers.values():
            told = any(what == "stopped" for what, _, _ in worker.news)
            if worker.running and worker.extension is not None and not told:
                assert worker.extension in self.registry.programmed()


class Worker:
    """One rank of one group, as it is in ``ElasticSlots``: its program waits at each ``yield``."""

    def __init__(self, network: Network, group: int, rank: int, sizes: list[int]) -> None:
        self.network, self.group, self.rank, self.sizes = network, group, rank, sizes
        self.growth = Growth(BASE_SLOTS)
        self.news: deque[tuple[str, Any, float]] = deque()
        self.extension: Job | None = None
        self.joining: Job | None = None
        self.answer: list[Job | None] = []
        self.left: dict[int, list[int]] = defaultdict(list)  # news of jobs, by their ids
        self.on_base = 0
        self.running, self.finished = True, False
        self.program = self.run()

    def run(self) -> Generator[None, None, None]:
        for number, lanes in enumerate(self.sizes):
            yield
            while True:
                if self.growth.wants_more(lanes):
                    yield from self.extend(number)
                if not self.growth.place_next():
                    yield from self.reduce_on_base((number, lanes))
                    break
                assert self.extension is not None
                key = (self.extension.id, self.growth.done)
                self.contribute(key, (number, lanes))
                while not (completed := self.completes(key)) and not self.aborted():
                    yield
                if self.growth.end(self.network.now, completed=completed):
                    self.leave()
                if completed:
                    break
        self.finished = True

    def completes(self, key: tuple[Any, ...]) -> bool:
        """Return whether the switch has the result, and this worker's entry there."""
        return len(self.network.sent[key]) == SIZE and self.extension in self.network.registry.programmed()

    def aborted(self) -> bool:
        return self.growth.overtaken and self.abort

    abort = False

    def extend(self, number: int) -> Generator[None, None, None]:
        yield from self.reduce_on_base(("meet", number))
        name = f"g{self.group}+{self.growth.attempts}"
        self.answer = []
        self.joining = self.network.join(self.group, self.rank, name, revocable=True)
        while not self.answer:
            yield
        self.joining, job = None, self.answer[0]
        yield from self.reduce_on_base(("agree", number))
        if job is None:
            self.growth.refuse()
        else:
            self.extension, self.abort = job, False
            self.growth.extend(self.network.now)
            for reductions in self.left[job.id]:
                self.withdrawn(reductions)
            yield

    def reduce_on_base(self, what: Any) -> Generator[None, None, None]:
        key = ("base", self.group, self.on_base)
        self.on_base += 1
        self.contribute(key, what)
        while len(self.network.sent[key]) < SIZE:
            yield

    def contribute(self, key: tuple[Any, ...], what: Any) -> None:
        """Take part in a reduction: it must be the same one for all."""
        sent = self.network.sent[key]
        sent[self.rank] = what
        assert len(set(map(str, sent.values()))) == 1, (key, sent)

    def leave(self) -> None:
        job, self.extension = self.extension, None
        done = self.growth.shrink()
        if job is not None:
            self.network.registry.leave(job.id, self.rank, "secret", self.network.now, reductions=done)
            self.network.react()

    def hear_all(self) -> None:
        while self.news:
            self.hear()

    def hear(self) -> None:
        """Take in a piece of news."""
        what, about, _ = self.news.popleft()
        if not self.running:
            return
        match what:
            case "joined":
                self.answer.append(about)
            case "withdrawn":
                job, reductions = about
                self.left[job.id].append(reductions)
                if job is self.extension:
                    self.withdrawn(reductions)
            case "reclaim" if about is self.extension and self.growth.reclaim(self.network.now):
                self.leave()
            case "reclaim":
                self.network.registry.keep(about)
                self.network.react()
            case "stopped" if about in (self.extension, self.network.bases[self.group]):
                self.end()

    def withdrawn(self, reductions: int) -> None:
        step = self.growth.withdrawn(reductions)
        self.abort = step is Step.ABORT
        if step is Step.LEAVE:
            self.leave()

    def end(self) -> None:
        """Be killed, or leave a group that is broken."""
        self.running = False
        registry = self.network.registry
        if self.joining is not None:
            registry.withdraw(self.joining, self.rank)
        for job in (self.extension, self.network.bases[self.group]):
            if job is not None and job in registry.programmed():
                registry.lose(job, self.rank)
        self.network.react()

    def step(self) -> None:
        if self.running and not self.finished:
            next(self.program, None)


ALL = frozenset(range(SIZE))
RANKS = st.sampled_from([ALL, ALL, *(ALL - {rank} for rank in ALL), *(frozenset({rank}) for rank in ALL)])
PROGRAMS = st.lists(
    st.lists(st.sampled_from([LARGE, LARGE, SMALL]), min_size=2, max_size=6), min_size=GROUPS, max_size=GROUPS
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, GROUPS - 1),
        RANKS,  # that run
        st.integers(1, 16),  # steps of each
        RANKS | st.just(frozenset[int]()),  # that hear their news before
        st.sampled_from([0.0, IDLE_S]),  # seconds that pass before
    ),
    min_size=10,
    max_size=30,
)
DEATHS = st.none() | st.tuples(st.integers(0, 40), st.integers(0, GROUPS - 1), st.integers(0, SIZE - 1))


@settings(max_examples=examples(200))
@given(PROGRAMS, STEPS, DEATHS)
def test_all_ranks_are_on_the_same_slots_and_none_waits_for_ever(
    programs: list[list[int]],
    steps: list[tuple[int, frozenset[int], int, frozenset[int], float]],
    death: tuple[int, int, int] | None,
) -> None:
    network = Network()
    network.begin(programs)
    for number, (group, ranks, count, hearers, seconds) in enumerate(steps):
        if death is not None and death[0] == number:
            network.workers[death[1:]].end()
        network.pass_time(seconds)
        for rank in hearers:
            network.workers[group, rank].hear_all()
        for _, rank in itertools.product(range(count), ranks):
            network.workers[group, rank].step()
            network.check()
    for _ in range(200):
        for worker in network.workers.values():
            worker.hear_all()
            worker.step()
        network.pass_time(0.25)
        network.check()
    for (group, _), worker in network.workers.items():
        broken = death is not None and group == death[1] and death[0] < len(steps)
        assert worker.finished or (broken and not worker.running), (group, worker.rank)


def test_ranks_that_have_begun_the_next_reduction_begin_it_again_when_one_gives_its_slots_back() -> None:
    network = Network()
    network.begin([[LARGE, LARGE], [LARGE]])
    first = [network.workers[0, rank] for rank in range(SIZE)]

    def run(group: int, ranks: range) -> None:
        for _, rank in itertools.product(range(20), ranks):
            network.workers[group, rank].hear_all()
            network.workers[group, rank].step()

    while not all(worker.growth.done for worker in first):
        for worker in first:
            worker.hear_all()
            worker.step()
    run(0, range(1, SIZE))
    assert [worker.growth.busy for worker in first] == [False, True, True]
    network.pass_time(IDLE_S)
    run(1, range(SIZE))
    first[0].hear_all()
    assert first[0].extension is None
    run(0, range(SIZE))
    run(1, range(SIZE))
    network.pass_time(2.0)
    run(0, range(SIZE))
    assert all(worker.finished for worker in network.workers.values())
