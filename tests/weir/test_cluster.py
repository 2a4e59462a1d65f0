# SPDX-License-Identifier: Apache-2.0
"""A local cluster serves while it runs, is this user's alone, and leaves nothing behind."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import weir
from softp4.native.build import cache_dir
from tests.harness.confined import run_on_small_disk
from tests.harness.processes import children, wait_until_gone
from weir.cluster import ClusterError


def mine() -> set[int]:
    """This process's children that belong to a cluster."""
    return {pid for pid, line in children(os.getpid()).items() if "weir.process.child" in line}


def test_a_cluster_serves_its_workers_and_leaves_nothing(short_path: Path) -> None:
    with weir.local_cluster(workers=3, directory=short_path) as cluster:
        directory = cluster.directory
        assert directory.parent == short_path and stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {path.name for path in (directory / "ports").glob("port-*")} == {
            "port-1",
            "port-2",
            "port-3",
        }
        (switch,) = cluster.status().switches
        assert switch.state == "ready"
        assert [port.host for port in switch.ports] == ["h1", "h2", "h3"]
        assert cluster.environment(2) == {
            "WEIR_CONTROLLER": cluster.controller,
            "WEIR_HOST": "h3",
            "WEIR_LINK": "shm",
        }
        with pytest.raises(ValueError, match=r"rank 3: .* 3 workers"):
            cluster.environment(3)
        cluster.check()
        processes = mine()
        assert len(processes) == 2
    wait_until_gone(*processes)
    assert list(short_path.iterdir()) == []


def test_a_capture_that_found_no_room_is_an_error_at_the_end(short_path: Path) -> None:
    says = r"/dev/full is not complete: No space left on device$"
    with (
        pytest.raises(ClusterError, match=says),
        weir.local_cluster(workers=1, directory=short_path, pcap="/dev/full"),
    ):
        pass
    assert list(short_path.iterdir()) == []


def test_a_process_that_dies_is_noticed_with_its_last_words(short_path: Path) -> None:
    with weir.local_cluster(workers=1, directory=short_path) as cluster:
        (controller,) = [pid for pid, line in children(os.getpid()).items() if "topology.json" in line]
        os.kill(controller, signal.SIGKILL)
        with pytest.raises(ClusterError, match=r"the controller died \(signal SIGKILL\)"):
            while True:  # a process with threads takes a moment to die
                cluster.check()
                time.sleep(0.02)
    assert list(short_path.iterdir()) == []


def test_a_switch_that_does_not_start_says_why_and_nothing_is_left(short_path: Path) -> None:
    (short_path / "cluster").mkdir()
    before = mine()
    cluster = weir.LocalCluster(1, directory=short_path / "cluster", pcap=short_path / "no" / "such.pcap")
    with pytest.raises(ClusterError, match=r"the switch did not start \(exit status 1\):(.|\n)*such\.pcap"):
        cluster.start()
    assert mine() == before
    assert list((short_path / "cluster").iterdir()) == []
    with pytest.raises(ClusterError, match="not running"):
        _ = cluster.controller


@pytest.mark.parametrize("workers", [0, 33])
def test_more_workers_than_a_switch_has_are_refused(workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers is {workers}: a switch serves 1 to 32"):
        weir.LocalCluster(workers)


def test_a_killed_parent_leaves_nothing(short_path: Path) -> None:
    script = (
        "import time, weir\n"
        f"with weir.local_cluster(workers=1, directory={str(short_path)!r}):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "up\n"
    processes = children(parent.pid)
    assert len(processes) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until_gone(*processes)
    assert list(short_path.iterdir()) == []


@pytest.mark.root
def test_a_cluster_without_memory_for_its_ports_says_what_it_needs(short_path: Path) -> None:
    script = f"import weir; weir.LocalCluster(2, directory={str(short_path)!r}).start()"
    done = run_on_small_disk(short_path, 3 << 20, [sys.executable, "-c", script])
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert f"ClusterError: a local cluster of 2 hosts needs 4.3 MiB of shared memory in {short_path}" in said
    assert "where 3.0 MiB of 3.0 MiB are free" in said and "WEIR_LOCAL=on" in said


def test_a_start_waits_as_long_as_something_compiles(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start on a slow machine takes minutes; then its limits count from the compiler's end."""
    monkeypatch.setattr("weir.cluster._START_TIMEOUT_S", 0.05)
    cluster = weir.LocalCluster(1, directory=short_path)
    with pytest.raises(ClusterError, match=r"the switch was not ready after 0\.05 s"):
        cluster.start()
    cache_dir().mkdir(parents=True, exist_ok=True)
    lock = cache_dir() / "test-of-a-slow-start.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            cluster.start()
        finally:
            lock.unlink()
    cluster.stop()
