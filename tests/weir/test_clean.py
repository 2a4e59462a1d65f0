# SPDX-License-Identifier: Apache-2.0
"""``weir clean`` removes what killed processes have left, and nothing that a living one has."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softp4.native.scratch import scratch_folder
from tests.harness.processes import children, is_alive, wait_until_gone
from tests.harness.source import source_path
from weir.process.child import PARENT, identity

SCRIPT = """
import sys, time
from pathlib import Path
from weir.process.child import spawn
from weir.process.child import spawn
from softp4.native.scratch import scratch_folder
with scratch_folder("weir-net"), scratch_folder("softp4-build", sys.argv[1]):
    spawn("waits", [], log=Path(sys.argv[1], "log"))
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files, control sockets and cache, all in one."""
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "SOFTP4_CACHE"):
        monkeypatch.setenv(name, str(short_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(short_path), source_path()]))
    (short_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    return short_path


@pytest.fixture
def parent(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process with two scratch folders and a child."""
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def clean(*options: str) -> str:
    """Return what it says of what this test made; others run on the same machine."""
    command = [sys.executable, "-m", "weir", "clean", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_killed_process_left_is_found_and_removed(
    parent: "subprocess.Popen[str]", folder: Path
) -> None:
    left = sorted(folder.glob("*-*.*"))
    assert [path.name.partition(".")[0] for path in left] == ["softp4-build", "weir-net"]
    (child,) = children(parent.pid)
    os.kill(child, signal.SIGSTOP)  # it cannot end with its parent
    told = [f"process {child} (waits)", *(f"folder {path}" for path in left)]
    said = clean()
    assert not any(words in said for words in told)  # its process lives
    parent.kill()
    parent.wait()
    said = clean("--dry-run")
    assert all(f"found: {words}\n" in said for words in told), said
    assert is_alive(child) and all(path.exists() for path in left)
    said = clean()
    assert all(f"removed: {words}\n" in said for words in told), said
    wait_until_gone(child)
    assert not list(folder.glob("*-*.*"))
    said = clean("--dry-run")
    assert not any(words in said for words in told)


def test_a_process_that_got_its_environment_from_a_child_stays_while_the_first_parent_lives() -> None:
    environment = {**os.environ, PARENT: identity(os.getpid())}
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo up; wait"], stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        (grandchild,) = children(child.pid)
        try:
            assert f"process {grandchild} " not in clean("--dry-run")
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_sockets_of_dead_switches_and_free_locks_go(folder: Path) -> None:
    (folder / "softp4").mkdir(mode=0o700)
    gone = subprocess.Popen(["true"])
    gone.wait()
    living, left = (folder / "softp4" / f"switch-{pid}.sock" for pid in (os.getpid(), gone.pid))
    lock = folder / "program-0123.lock"
    for path in (living, left, lock):
        path.touch()
    said = clean()
    assert f"removed: socket {left}\n" in said
    assert f"removed: lock {lock}\n" in said
    assert (living.exists(), left.exists(), lock.exists()) == (True, False, False)


def test_a_folder_that_is_held_or_not_weirs_stays(folder: Path) -> None:
    others = [folder / "weir-mine", folder / "other-net.12345678", folder / "weir-net-12345678"]
    for path in others:
        path.mkdir()
    with scratch_folder("weir-bench", folder) as held:
        assert str(folder) not in clean()
        assert held.exists()
    assert not held.exists()
    assert all(path.exists() for path in others)
