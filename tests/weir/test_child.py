# SPDX-License-Identifier: Apache-2.0
"""A child ends with its parent, however that ends, and ``end`` leaves none."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.processes import wait_until_gone
from weir.process.child import end, how_it_ended, log_tail, spawn

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules for children to run: one that waits, one that will not end when asked."""
    (tmp_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "fails.py").write_text("import sys; print(sys.argv[1:]); raise ValueError('on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def wait_for(path: Path) -> str:
    for _ in range(1500):
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path} was never written")


@pytest.mark.parametrize("module", ["waits", "stubborn"])
def test_end_ends_a_child_and_its_last_words_are_kept(tmp_path: Path, module: str) -> None:
    log = tmp_path / "log"
    process = spawn(module, [], log=log)
    wait_for(log)
    end([process], grace_s=0.2)
    assert how_it_ended(process.returncode) == ("signal SIGTERM" if module == "waits" else "signal SIGKILL")
    assert log_tail(log) == "up"


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn("fails", ["a", "b c"], log=log)
    assert how_it_ended(process.wait(30)) == "exit status 1"
    assert "['a', 'b c']" in log_tail(log) and "ValueError: on purpose" in log_tail(log)


def test_a_child_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which anybody may be the owner, as of /tmp."""
    folder = tmp_path / "anybodys"
    folder.mkdir()
    for name in ("runpy", "fails", "weir"):
        (folder / f"{name}.py").write_text("print('foreign code', flush=True)")
    monkeypatch.chdir(folder)
    log = tmp_path / "log"
    spawn("fails", [], log=log).wait(30)
    assert "on purpose" in log_tail(log) and "foreign code" not in log_tail(log)


@pytest.mark.parametrize("module", ["waits", "stubborn"])
def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path, module: str) -> None:
    (tmp_path / "private").mkdir()
    script = (
        "import sys, time; from pathlib import Path; from weir.process.child import spawn\n"
        f"folder = Path({str(tmp_path)!r})\n"
        f"child = spawn({module!r}, [], log=folder / 'log', remove=folder / 'private')\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    wait_for(tmp_path / "log")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until_gone(child)
    assert not (tmp_path / "private").exists()
