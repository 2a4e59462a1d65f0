# SPDX-License-Identifier: Apache-2.0
"""The soft switch does what BMv2 did with random entries and frames; with BMv2 on PATH, what it does now."""

import shutil
from pathlib import Path

import pytest

from tests.differential.__main__ import compare
from tests.differential.compare import differences
from tests.differential.generate import program
from tests.differential.play import on_bmv2, on_soft
from tests.differential.recording import Recording, digest, load
from tests.differential.subjects import OURS, RECORDED, Subject, compiled, ours
from tests.harness.effort import effort
from tests.programs import unpack


def recorded(subject: Subject, command: str = "python -m tests.differential") -> Recording:
    """Return the recording of a program as it is; an old one cannot be compared."""
    recording = load(subject.recording)
    if recording.digest != digest(subject.json):
        hint = f"recorded of an older program: {command} --record --only {subject.name}"
        if shutil.which("simple_switch_grpc"):
            pytest.fail(hint)
        pytest.skip(hint)
    return recording


@pytest.mark.parametrize("name", OURS)
def test_frames_leave_as_they_left_bmv2(name: str, tmp_path: Path) -> None:
    subject = ours(name, tmp_path)
    recording = recorded(subject)
    assert any(recording.played.left)
    soft = on_soft(subject.soft, subject.json, recording.scenario)
    assert not list(differences(subject.json, recording.scenario, recording.played, soft))


@pytest.mark.p4c
@pytest.mark.bmv2
@pytest.mark.parametrize("name", effort(OURS[1::6], OURS))
def test_bmv2_does_what_is_recorded(name: str, tmp_path: Path) -> None:
    subject = compiled(name, tmp_path)
    recording = recorded(subject)
    again = on_bmv2(subject.bmv2, subject.p4info, subject.json, recording.scenario, subject.one_by_one)
    assert again == recording.played


@pytest.mark.p4c
@pytest.mark.bmv2
@pytest.mark.parametrize("name", effort(OURS[::6], OURS))
def test_other_frames_leave_as_they_leave_bmv2(name: str, tmp_path: Path) -> None:
    frames, different, _ = compare(compiled(name, tmp_path), seed=2, frames=300)
    assert frames and not different


def test_recordings_reach_every_corner_of_a_parser() -> None:
    """Otherwise equal answers would say little: errors, full stacks, headers on any bit all occur."""
    played = load(RECORDED / "parsing.json.xz").played
    reports = [unpack(frame[:8], (32, 8, 8, 8, 7, 1)) for left in played.left for _, frame in left]
    assert {0, 1, 3, 100} <= {error for error, *_ in reports}
    assert {0, 1, 3, 4} <= {labels for _, labels, *_ in reports}
    assert {0, 1} == {odd for *_, odd in reports}


@pytest.mark.p4c
@pytest.mark.bmv2
def test_a_program_made_at_random_does_the_same_on_bmv2(tmp_path: Path) -> None:
    source = tmp_path / "generated.p4"
    source.write_text(program(1))
    frames, different, _ = compare(compiled(source, tmp_path), seed=1, frames=100)
    assert frames and not different
