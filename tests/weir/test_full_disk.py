# SPDX-License-Identifier: Apache-2.0
"""Runs whose folder is on a disk that runs full: one sentence, and a status that is not 0."""

import sys
from pathlib import Path

import pytest

from tests.harness.disk import run_on_small_disk, then

_PAGE = 4096
_SHORT = ["--workers", 2, "--epochs", 1, "--max-steps", 3]
_RUNS = {
    "train": ["train", "--model", "cnn", "--no-reference", *_SHORT],
    "compare": ["compare", "--model", "cnn", "--methods", "dense", "--seeds", 1, *_SHORT],
}

pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    ("command", "pages", "names"),
    [
        ("train", 1, "config.json"),
        ("train", 2, "steps.jsonl"),
        ("train", 12, "report.png"),
        ("compare", 12, "compare.png"),
    ],
)
def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, command: str, pages: int, names: str) -> None:
    """One page is taken from the start."""
    small = tmp_path / "small"
    small.mkdir()
    weir = [sys.executable, "-m", "weir", *_RUNS[command], "--out", small / "runs"]
    filled = ["sh", "-c", 'echo > "$0/filler"; exec "$@"', small, *weir]
    done = run_on_small_disk(small, pages * _PAGE, then(filled, "ls", small / "runs"))
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    (told,) = [line for line in said.splitlines() if "cannot write" in line]
    assert names in told
    assert "No space left on device" in told
    assert "Traceback" not in said
