# SPDX-License-Identifier: Apache-2.0
"""Disks that run full: one sentence, a status that is not 0, and files that must be replaced stay."""

import sys
from pathlib import Path

import pytest

from tests.harness.confined import run_on_small_disk, then

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
        pytest.param("train", 1, "config.json", marks=pytest.mark.long),
        ("train", 2, "steps.jsonl"),
        pytest.param("train", 12, "report.png", marks=pytest.mark.long),
        pytest.param("compare", 12, "compare.png", marks=pytest.mark.long),
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


_WRITERS = """
import sys
from pathlib import Path

import numpy as np

from tests.controller.helpers import job
from weir.controller.memory import Memory
from weir.controller.topology import single_switch
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.parameter_server.journal import Journal
from weir.host_agent.placement.traffic import Placement
from weir.partition.planfile import PlanFile, Source

folder, topology = Path(sys.argv[1]), single_switch(200, "127.0.0.1:1")
journal = Journal(folder / "server")


def write(number):
    places = np.zeros(2 if number == 0 else 30_000, np.int64)
    jobs = [job("a", topology, size=1 + 199 * number)]
    yield "state.json", lambda: Memory(folder / "state.json").save(jobs)
    yield "checkpoint.npz", lambda: journal.save({"w": places})
    yield "journal", lambda: journal.append(bytes(40_000) if number else b"first")
    yield "policy.json", lambda: LossPolicy.from_budget(0.1).save(folder / "policy.json")
    plan = PlanFile(Source((folder,)), Placement(1, places, places), None)
    yield "plan.json", lambda: plan.save(folder / "plan.json")


for _, one in write(0):
    one()
(folder / "filler").write_bytes(b"")
try:
    with (folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
except OSError:
    pass
before = {path: path.read_bytes() for path in [*folder.rglob("*.*"), folder / "server/journal"]}
for name, one in write(1):
    try:
        one()
        print(name, "was written")
    except Exception as error:
        print(name, type(error).__name__, error)
print("as before:", all(path.read_bytes() == data for path, data in before.items()), len(before))
print("left:", *sorted(path.name for path in folder.rglob("*") if path.is_file()))
journal.close()
with Journal(folder / "server") as journal:
    journal.replay(lambda state: print("state", state["w"].tolist()), lambda record: print("record", record))
"""


def test_a_file_that_cannot_be_replaced_is_as_it_was(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    done = run_on_small_disk(small, 32 * _PAGE, [sys.executable, "-c", _WRITERS, small])
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    kinds = ["StateFileError", "JournalError", "JournalError", "OSError", "OSError"]
    names = ["state.json", "checkpoint.npz", "journal", "policy.json", "plan.json"]
    for line, name, kind in zip(said, names, kinds, strict=False):
        assert line.startswith(f"{name} {kind} ") and "No space left on device" in line, line
    assert said[5:] == [
        "as before: True 5",
        "left: checkpoint.npz filler journal plan.json policy.json state.json",
        "state [0, 0]",
        "record b'first'",
    ]
