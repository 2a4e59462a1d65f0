# SPDX-License-Identifier: Apache-2.0
"""Children of a template: their own streams, environment, namespace and end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import children, name, wait_until_gone
from weir.netns import Namespace
from weir.process.child import ChildError, end, how_it_ended
from weir.process.template import Template, shared_template

TELLS = """
import atexit, json, os, socket, sys
loaded = os.getpid()

def main():
    atexit.register(print, "ended in order")
    print("on standard error", file=sys.stderr)
    print(json.dumps({"arguments": sys.argv[1:], "rank": os.environ.get("RANK"), "folder": os.getcwd(),
        "old": os.environ.get("OLD"), "imported by": loaded, "me": os.getpid(), "session": os.getsid(0),
        "interfaces": [name for _, name in socket.if_nameindex()]}))
    if sys.argv[1:] == ["fail"]:
        raise ValueError("on purpose")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules for children to run."""
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "waits.py").write_text(
        "import time\ndef main():\n    print('up', flush=True); time.sleep(600)"
    )
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.fixture
def tells(tmp_path: Path) -> Iterator[Template]:
    template = Template("tells", {}, tmp_path / "template.log")
    yield template
    template.close()


def test_children_share_an_import_and_nothing_else(
    tells: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLD", "of today")  # the template is older than that
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    told = []
    for rank in range(3):
        log = tmp_path / f"{rank}.log"
        child = tells.fork(["a", f"b {rank}"], log=log, environment={"RANK": str(rank)}, pipe=True)
        assert child.stdout is not None
        output = child.stdout.read().decode()
        assert child.wait(30) == 0 == child.poll()
        assert "on standard error" in log.read_text() and "ended in order" in output
        told.append(json.loads(output.splitlines()[0]))
        assert told[-1]["arguments"] == ["a", f"b {rank}"] and told[-1]["rank"] == str(rank)
        assert told[-1]["old"] == "of today" and told[-1]["folder"] == str(tmp_path / "here")
        assert told[-1]["me"] == told[-1]["session"] == child.pid
    assert len({one["imported by"] for one in told}) == 1 and len({one["me"] for one in told}) == 3


def test_a_child_that_fails_says_why(tells: Template, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = tells.fork(["fail"], log=log, environment={})
    assert how_it_ended(child.wait(30)) == "exit status 1"
    assert "ValueError: on purpose" in log.read_text()
    child.terminate()  # one that has ended is left alone
    assert tells.runs


def test_a_module_that_cannot_be_imported_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    template = Template("broken", {}, tmp_path / "log")
    with pytest.raises(ChildError, match=r"(?s)broken cannot start.*nothing_of_this_name"):
        template.fork([], log=tmp_path / "log", environment={})
    template.close()


def test_end_ends_children_and_the_kernel_shows_their_names(tmp_path: Path) -> None:
    template = Template("waits", {}, tmp_path / "template.log")
    both = [template.fork([], log=tmp_path / f"rank-{rank}.log", environment={}) for rank in range(2)]
    while [name(child.pid) for child in both] != ["rank-0", "rank-1"]:
        time.sleep(0.02)
    with pytest.raises(subprocess.TimeoutExpired):
        both[0].wait(0.01)
    os.kill(both[1].pid, signal.SIGKILL)
    end(both)
    assert [how_it_ended(child.wait(30)) for child in both] == ["signal SIGTERM", "signal SIGKILL"]
    template.close()


def test_when_the_template_is_killed_its_children_count_as_dead_and_a_new_one_starts(tmp_path: Path) -> None:
    first = shared_template("waits", {}, tmp_path / "log")
    assert shared_template("waits", {}, tmp_path / "log") is first
    child = first.fork([], log=tmp_path / "child.log", environment={})
    lines = children(os.getpid()).items()
    (template,) = (pid for pid, line in lines if pid != child.pid and "template waits" in line)
    os.kill(template, signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    end([child])
    wait_until_gone(child.pid)
    second = shared_template("waits", {}, tmp_path / "log")
    assert second is not first
    end([second.fork([], log=tmp_path / "child.log", environment={})])
    second.close()


def test_template_and_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from weir.process.template import Template\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "template = Template('waits', {}, folder / 'log')\n"
        "print(template.fork([], log=folder / 'log', environment={}).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    template = children(parent.pid)
    while "up" not in (tmp_path / "log").read_text():
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert child in template and len(template) == 2
    wait_until_gone(*template)


@pytest.mark.root
def test_a_child_enters_its_namespace_and_the_template_stays(tells: Template, tmp_path: Path) -> None:
    with Namespace() as inside:
        inside.links.add_bridge("mark")
        seen = []
        for prefix in (inside.prefix, ()):
            child = tells.fork([], log=tmp_path / "log", environment={}, pipe=True, prefix=prefix)
            assert child.stdout is not None
            seen.append("mark" in child.stdout.read().decode())
        assert seen == [True, False]
