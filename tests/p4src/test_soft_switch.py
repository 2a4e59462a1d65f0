# SPDX-License-Identifier: Apache-2.0
"""Weir's program on the soft switch: as on BMv2, and shared by threads."""

import random
from pathlib import Path

import pytest

from softp4.codegen.frame_fields import frame_field_function
from softp4.codegen.layout import Layout
from softp4.program.loader import load_program
from softp4.state.entry import Entry
from softp4.switch import Switch
from tests.differential.__main__ import compare
from tests.differential.compare import differences
from tests.differential.play import on_bmv2, on_soft
from tests.differential.test_recorded import recorded
from tests.early_parser import outcomes
from tests.harness.effort import effort
from tests.harness.keys import entry_key
from tests.p4src.differential import COMMAND, weir
from tests.p4src.jobs_traffic import Jobs
from tests.shared import compare as compare_threads
from weir.p4src import PROGRAM, WIDE_PROGRAM


def test_frames_leave_as_they_left_bmv2(tmp_path: Path) -> None:
    subject = weir(tmp_path)
    recording = recorded(subject, COMMAND)
    assert any(recording.played.left)
    soft = on_soft(subject.soft, subject.json, recording.scenario)
    assert not list(differences(subject.json, recording.scenario, recording.played, soft))


@pytest.mark.bmv2
def test_bmv2_does_what_is_recorded(tmp_path: Path) -> None:
    subject = weir(tmp_path)
    recording = recorded(subject, COMMAND)
    again = on_bmv2(subject.bmv2, subject.p4info, subject.json, recording.scenario, subject.one_by_one)
    assert again == recording.played


@pytest.mark.bmv2
def test_other_frames_leave_as_they_leave_bmv2(tmp_path: Path) -> None:
    frames, different, _ = compare(weir(tmp_path), seed=2, frames=300)
    assert frames and not different


@pytest.mark.parametrize("path", [PROGRAM, WIDE_PROGRAM])
def test_a_parser_that_ends_early_finds_what_the_whole_one_does(path: Path) -> None:
    """With frames of jobs, whole and cut."""
    rng = random.Random(1)
    jobs = Jobs(rng)
    sent = [jobs.arrival()[1] for _ in range(200)]
    assert outcomes(path, [*sent, *(frame[: rng.randrange(len(frame))] for frame in sent)]) == {1, 2}


@pytest.mark.parametrize("path", [PROGRAM, WIDE_PROGRAM])
def test_threads_ask_for_no_lanes(path: Path) -> None:
    text = frame_field_function(Layout(load_program(path), ()), trace=False)
    assert "get_ht_weir_t" in text
    assert "lanes" not in text and "column" not in text


@pytest.mark.parametrize(
    ("program", "seed"), [*((PROGRAM, seed) for seed in range(effort(1, 3))), (WIDE_PROGRAM, 3)]
)
def test_jobs_are_shared_by_slot(program: Path, seed: int) -> None:
    jobs = Jobs(random.Random(seed))

    def put(switch: Switch) -> None:
        for row in jobs.rows:
            switch.table(row.table).insert(Entry(entry_key(row.key), row.action, row.args, row.priority))
        for group, replicas in jobs.groups.items():
            switch.multicast_groups.set(group, replicas)

    batches = [[jobs.arrival() for _ in range(effort(60, 200))] for _ in range(3)]
    by = compare_threads(program, put, batches, loose=["queue_depths"])
    assert by is not None and by.startswith("weir.slot & ")
