# SPDX-License-Identifier: Apache-2.0
"""Threads of a switch: by what they may share frames, and that nobody can tell them from a single one."""

import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from softp4.dataplane.pcap import read_capture
from softp4.dataplane.port_spec import PortSpec, Shm
from softp4.device import Device
from softp4.native.ring import ShmPort
from softp4.runtime.queueing import Queueing
from softp4.state.entry import Entry, Exact
from softp4.state.meters import MeterConfig
from softp4.switch import Switch
from tests.conformance.cases import Case, compile_case
from tests.differential import play
from tests.differential.recording import load
from tests.differential.scenario import Scenario
from tests.differential.subjects import OURS, ours
from tests.fuzzing.sanitized import run_thread_sanitized, thread_sanitizer
from tests.programs import FOLDER, program
from tests.random_state import ACTIONS
from tests.random_state import program as random_program
from tests.shared import Frames, compare

REQUESTED = "In.requested"
Rows = Mapping[int, tuple[str, tuple[int, ...]]]


def fill(rows: Rows) -> Callable[[Switch], None]:
    """Return what puts rows, action and arguments by `what`, into the test program."""

    def put(switch: Switch) -> None:
        for what, (action, args) in rows.items():
            switch.table(REQUESTED).insert(Entry((Exact(what),), f"In.{action}", args))
        switch.multicast_groups.set(1, [(1, 0), (2, 0), (3, 0)])
        switch.meter("In.pace").configure(MeterConfig(1000, 5, 2000, 9))

    return put


def requests(rng: random.Random, whats: list[int], count: int) -> Frames:
    """Return random requests, many of them for the same few slots and flows."""
    return [
        (
            rng.randrange(4),
            bytes([rng.choice(whats), rng.choice((0, 1, 2, 255, rng.randrange(256)))])
            + rng.randrange(rng.choice((4, 64, 65536))).to_bytes(2, "big")
            + rng.randbytes(8)[: rng.choice((8, 8, 8, 3))],
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("rows", "by", "why_not"),
    [
        ({}, "turns", ""),
        ({1: ("nothing", ()), 2: ("look", ())}, "turns", ""),
        ({1: ("add", (0,))}, "request.slot & 0xff", ""),
        ({1: ("add", (64,)), 2: ("add", (128,))}, "request.slot & 0x3f", ""),
        ({1: ("add", (64,)), 2: ("mark", (16,))}, "request.slot & 0xf", ""),
        ({1: ("remember", ())}, "request.flow & 0xff", ""),
        ({1: ("add", (1,)), 2: ("add", (128,))}, None, "register In.sums: no bit of the frame"),
        ({1: ("remember", ()), 2: ("mark", (0,))}, None, "all of them: "),
        ({1: ("count_all", ()), 2: ("mark", (0,))}, None, "register In.total: no bit of the frame"),
        ({1: ("add", (0,)), 2: ("draw", ())}, None, "In.draw: random numbers come from one sequence"),
    ],
)
def test_entries_decide_by_what_frames_are_shared(rows: Rows, by: str | None, why_not: str) -> None:
    rng = random.Random(1)
    batches = [requests(rng, [*rows, 9], count) for count in (1, 40, 1500)]
    found = compare(program("shards"), fill(rows), batches, loose=["depths"])
    assert (found or "").startswith(by or "") and bool(found) == bool(by)
    with Switch(program("shards"), threads=2) as switch:
        fill(rows)(switch)
        assert any(why_not in reason for reason in switch.threads.share().reasons) == bool(why_not)


def shares_of(switch: Switch, frames: Frames) -> list[int]:
    """Run frames; return how many of them came to each thread."""
    before = switch.threads.shares()
    switch.process_many(frames, 0)
    return [after - old for after, old in zip(switch.threads.shares(), before, strict=True)]


def await_shares(switch: Switch, frames: Frames) -> None:
    """Run frames until every thread has a share of them. On a busy machine, where frames may seem to cost
    anything, an unequal cut is put up with for up to 256 times that shares are judged.
    """
    judged = -(-2048 // len(frames))  # this many calls later
    for _ in range(2 * 256 * judged):
        shares = shares_of(switch, frames)
        assert sum(shares) == len(frames)
        if max(shares) < 0.8 * len(frames):  # a slower processor gets less, at least half
            return
    raise AssertionError(f"shares of {len(frames)} frames are still {shares}")


@pytest.mark.parametrize("values", [range(64), range(1000, 1300, 7), [*range(8), *range(60_000, 60_008)]])
@pytest.mark.parametrize("threads", [2, 3])
def test_every_thread_gets_a_share_of_whatever_slots_are_in_use(values: Sequence[int], threads: int) -> None:
    with Switch(program("shards"), threads=threads) as switch:
        fill({1: ("add", (0,))})(switch)
        assert switch.threads.share().reasons == ()
        for slots in (values, range(200, 232), values):  # others meanwhile: shares follow what comes
            frames = [(0, bytes([1, 0]) + slot.to_bytes(2, "big") + bytes(8)) for slot in slots] * 30
            await_shares(switch, frames)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_threads_leave_the_callers_processor_to_it() -> None:
    allowed = os.sched_getaffinity(0)
    tasks = set(Path("/proc/self/task").iterdir())
    with Switch(program("shards"), threads=2) as switch:
        (helper,) = set(Path("/proc/self/task").iterdir()) - tasks
        fill({1: ("add", (0,))})(switch)
        switch.threads.share()
        try:
            for processor in sorted(allowed)[:2]:
                os.sched_setaffinity(0, {processor})
                switch.process_many(requests(random.Random(1), [1], 100), 0)
                assert os.sched_getaffinity(int(helper.name)) == allowed - {processor}
        finally:
            os.sched_setaffinity(0, allowed)


def test_frames_of_one_slot_stay_one_threads_and_shares_recover() -> None:
    with Switch(program("shards"), threads=2) as switch:
        fill({1: ("add", (0,))})(switch)
        switch.threads.share()
        one = [(0, bytes([1, 0]) + (5).to_bytes(2, "big") + bytes(8))] * 600
        for _ in range(300):
            switch.process_many(one, 0)
        assert sorted(shares_of(switch, one)) == [0, 600]
        many = [(0, bytes([1, 0]) + slot.to_bytes(2, "big") + bytes(8)) for slot in range(64)] * 10
        await_shares(switch, many)


def test_an_entry_that_contradicts_ends_the_sharing_before_it_counts() -> None:
    rng = random.Random(2)
    with Switch(program("shards")) as alone, Switch(program("shards"), threads=2) as shared:
        for switch in (alone, shared):
            fill({1: ("add", (64,))})(switch)
        shared.threads.share()
        table = shared.table(REQUESTED)
        assert shared.threads.by == "request.slot & 0x3f"
        for row, still in [
            (Entry((Exact(2),), "In.add", (64,)), True),
            (Entry((Exact(3),), "In.add", (1,)), False),
        ]:
            for switch in (alone, shared):
                switch.table(REQUESTED).insert(row)
            assert (shared.threads.by is not None) == still
            frames = requests(rng, [1, 2, 3], 400)
            assert shared.process_many(frames, 0) == [
                sent for port, frame in frames for sent in alone.process(port, frame, 0)
            ]
        assert "In.add" in shared.threads.why_not[0]
        table.delete((Exact(3),))
        shared.threads.share()
        assert shared.threads.by == "request.slot & 0x3f"


def test_limited_ports_and_traces_need_one_thread_and_get_it() -> None:
    rng = random.Random(3)
    with Switch(program("shards")) as alone, Switch(program("shards"), threads=2) as shared:
        for switch in (alone, shared):
            fill({1: ("add", (0,))})(switch)
        shared.threads.share()
        for step in range(4):
            for switch in (alone, shared):
                switch.queues(2).set(Queueing(rate_pps=1000, depth_packets=5) if step == 1 else None)
                if step == 3:
                    switch.recorder.start()
            frames = requests(rng, [1], 300)
            assert shared.process_many(frames, step * 10**9) == [
                sent for port, frame in frames for sent in alone.process(port, frame, step * 10**9)
            ]
        assert len(shared.recorder.read()[0]) == len(alone.recorder.read()[0]) > 300


@pytest.mark.parametrize("captured", [False, True])
def test_a_device_shares_what_comes_in_at_its_ports(captured: bool, tmp_path: Path) -> None:
    rng = random.Random(4)
    come = {port: [frame for _, frame in requests(rng, [1, 9], 200)] for port in range(4)}
    with Switch(program("shards")) as alone, Device(threads=2) as device:
        device.open_shm(tmp_path / "shm")
        for port in come:
            device.add_port(PortSpec(port, Shm()))
        device.load(FOLDER / "shards.json")
        if captured:
            device.loop.capture(tmp_path / "frames.pcapng")
        device.start()
        with device.running_switch() as switch:
            for each in (alone, switch):
                fill({1: ("add", (0,))})(each)
            await_sharing(device)
            ports = {port: ShmPort(tmp_path / "shm", port) for port in come}
            with switch.paused():  # so that they come in together
                for port, frames in come.items():
                    assert all(ports[port].send(frame) for frame in frames)
            sent = [
                each
                for port, frames in come.items()
                for frame in frames
                for each in alone.process(port, frame, 0)
            ]
            for port, end in ports.items():
                expected = [frame for to, frame in sent if to == port]
                assert [end.recv() for _ in expected] == expected
                assert end.recv(0.01) is None
                assert device.loop.statistics(port).rx_packets == 200
                end.close()
            assert switch.statistics() == alone.statistics()
        if captured:
            device.loop.stop_capture(tmp_path / "frames.pcapng")
            kept = [each.frame for each in read_capture(tmp_path / "frames.pcapng")]
            assert sorted(kept) == sorted([*itertools.chain(*come.values()), *(frame for _, frame in sent)])


def await_sharing(device: Device) -> None:
    until = time.monotonic() + 30
    while (device.describe_program() or {})["threads"]["shared_by"] is None:
        assert time.monotonic() < until, device.describe_program()
        time.sleep(0.02)


def scenario_filler(scenario: Scenario) -> Callable[[Switch], None]:
    return lambda switch: play.fill(switch, scenario)


@pytest.mark.parametrize("name", OURS)
def test_random_entries_and_frames_go_as_with_one_thread(name: str, tmp_path: Path) -> None:
    subject = ours(name, tmp_path)
    scenario = load(subject.recording).scenario
    compare(subject.soft, scenario_filler(scenario), [scenario.frames])


@pytest.mark.p4c
@pytest.mark.parametrize("seed", [2, 4])
def test_a_program_made_at_random_goes_as_with_one_thread(seed: int, tmp_path: Path) -> None:
    assert play_random(seed, tmp_path) is not None  # chosen so that there is something to share


def play_random(seed: int, scratch: Path) -> str | None:
    """Compare a random program under random entries and frames; return by what frames were shared."""
    rng = random.Random(seed)
    source = scratch / f"state{seed}.p4"
    source.write_text(random_program(seed))
    made = compile_case(Case(source.stem, source, source), scratch / source.stem).program
    base = rng.choice((0, 0, 16, 64, 65))
    rows = {what: (rng.randrange(ACTIONS), base) for what in range(rng.randrange(6))}

    def put(switch: Switch) -> None:
        for what, (action, base) in rows.items():
            switch.table("In.choose").insert(Entry((Exact(what),), f"In.act{action}", (base,)))
        switch.multicast_groups.set(1, [(1, 0), (2, 0), (3, 0)])
        if "In.pace" in switch.program.meters:
            switch.meter("In.pace").configure(MeterConfig(1000, 5, 2000, 9))

    return compare(made, put, [requests(rng, [*rows, 9], 700) for _ in range(3)])


@pytest.mark.skipif(thread_sanitizer() is None, reason="the compiler has no ThreadSanitizer")
def test_threads_race_for_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.racing", str(tmp_path)]
    report = run_thread_sanitized(command)
    assert not report.bad, report.output


if __name__ == "__main__":  # SEED...: random programs
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for number in map(int, sys.argv[1:]):
            print(number, play_random(number, Path(folder)))
