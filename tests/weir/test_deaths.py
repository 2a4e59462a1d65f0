# SPDX-License-Identifier: Apache-2.0
"""Deaths: a job of which one process dies or stops ends with a sentence that names it, or goes on.

Either way nothing of it is left. Jobs are started as users start them.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM
from typing import Final

import pytest

from tests.harness.effort import effort
from tests.harness.started import TORCHRUN, WEIR, Started, started
from tests.harness.weir_needs import SYSTEM_PYTHON
from weir.controller.topology import single_switch

HANGS_S: Final = 60.0  # then a job has gone silent; twice as long as users wait, for a machine that is busy
AT_ONCE: Final = 3
LEASE_S: Final = 5
PARENT: Final = "the parent"
ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = str(ROOT / "tests" / "weir" / "endless_sums.py")
SUMS: Final = (*TORCHRUN, "--nproc-per-node", "2", SCRIPT, "{folder}")  # and the ranks' timeout


@dataclass(frozen=True)
class Job:
    """A command, its processes by the patterns of their command lines, and what it says at some points.

    ``{folder}`` in a command is a folder of the test's own. The first process is there in the middle.
    """

    command: tuple[str, ...]
    processes: Mapping[str, str]
    says: Mapping[str, str] = field(default_factory=dict)


RANKS: Final = dict.fromkeys(("rank 0", "rank 1"), "-u .*endless_sums")
CLUSTER: Final = {
    "switch": r"weir\.process\.child softp4 run",
    "controller": r"weir\.process\.child weir\.controller",
}
PROGRESS: Final = {"middle": r"rank . begins[^!]*rank . begins", "end": r"exact sums[^!]*exact sums"}
WORKERS: Final = {f"worker {rank}": rf"worker-{rank}$" for rank in range(2)}
POOL: Final = {"worker": r"multiprocessing\.spawn"}
TRAIN: Final = "train --model mlp --workers 2 --epochs 1000 --no-reference --out runs"
TRAINING: Final = (
    "bench run training/links --set model=mlp --set workers=2 --set epochs=1 --set max_steps=2"
    " --set peers=ps --set topology=single --set budget=0"
)
TAIL: Final = "bench run simulated/tail --processes 2"
ALLREDUCE: Final = "bench run collectives/allreduce --set workers=2 --set rates="
MININET: Final = (SYSTEM_PYTHON, str(ROOT / "mininet" / "single.py"))
JOBS: Final = {
    "torchrun": Job((*SUMS, "60"), {**RANKS, **CLUSTER}, PROGRESS),
    "impatient": Job((*SUMS, "8"), {**RANKS, **CLUSTER}, PROGRESS),
    "rack": Job((*SUMS, "8"), RANKS, PROGRESS),  # with a switch and a controller that are there already
    "train": Job((*WEIR, *TRAIN.split()), {**WORKERS, **CLUSTER}, {"middle": "step 1/"}),
    "calibrate": Job((*WEIR, "calibrate", "--model", "mlp", "--processes", "2"), POOL),
    "tail": Job((*WEIR, *TAIL.split()), POOL, {"middle": "2 at a time"}),
    "allreduce": Job((*WEIR, *ALLREDUCE.split()), {"rank 1": r"rank-1$"}),
    "training": Job((*WEIR, *TRAINING.split()), {"server": "tcp_server"}),
    "mininet": Job((*MININET, "--workers", "2", "--run", "sleep 600"), {"host's command": "^sleep 600"}),
}
NEEDS: Final = {"training": "root", "mininet": "mininet"}


@dataclass(frozen=True)
class Death:
    """A row: in which job, who, gets which signal, when, and a pattern of what is said then.

    ``goes_on``: the job gets to its end all the same.
    """

    job: str
    who: str
    how: signal.Signals
    when: str
    says: str
    goes_on: bool = False

    def __str__(self) -> str:
        return f"{self.job}: {self.who}, {self.how.name}, {self.when}"


def killed(rank: int, number: int) -> str:
    """Return the pattern of torchrun's own report."""
    return rf"rank +: {rank} [^!]*Signal {number} \("


LOST: Final = r"rank {} \(h.\) is lost: it was not heard of for"
BROKEN: Final = "the local cluster that rank 0 started for this job is broken: the {}"
SILENT_FIRST: Final = (  # it is stopped before it meets the others, or after that
    "ranks these did not come within 8 s: rank 0 of 2; "
    "|rank 0 did not say within 8 s which controller to join"
)
KILLED_ONE: Final = "a worker process was killed"
DEATHS: Final = [
    # job, who dies, of what, when, what is said
    Death("torchrun", "rank 1", SIGKILL, "middle", killed(1, 9)),
    Death("rack", "switch", SIGKILL, "middle", "switch s1 .*cannot be reached"),
    Death("train", PARENT, SIGKILL, "middle", ""),
    Death("calibrate", "worker", SIGKILL, "middle", KILLED_ONE),
    Death("mininet", PARENT, SIGKILL, "middle", ""),
]
MORE_DEATHS: Final = [
    Death("torchrun", "switch", SIGKILL, "middle", BROKEN.format(r"switch died \(signal SIGKILL\)")),
    Death("torchrun", "rank 0", SIGSTOP, "middle", LOST.format(0)),
    Death("rack", "controller", SIGKILL, "middle", "lost the controller"),
    Death("training", "server", SIGKILL, "middle", r"the parameter server died \(signal SIGKILL\)"),
    Death("torchrun", PARENT, SIGKILL, "middle", "exact sums", goes_on=True),
    Death("tail", PARENT, SIGINT, "middle", ""),
    Death("allreduce", "rank 1", SIGKILL, "middle", r"rank 1 failed \(signal SIGKILL\)"),
    Death("torchrun", "rank 1", SIGKILL, "start", killed(1, 9)),
    Death("impatient", "rank 0", SIGSTOP, "start", SILENT_FIRST),
    Death("torchrun", "switch", SIGKILL, "start", r"the switch did not start \(signal SIGKILL\)"),
    Death("torchrun", "rank 0", SIGKILL, "middle", killed(0, 9)),
    Death("torchrun", "rank 0", SIGINT, "middle", r"rank0\]: KeyboardInterrupt"),
    Death("torchrun", "switch", SIGSTOP, "middle", BROKEN.format(r"switch died \(a signal had stopped it")),
    Death("torchrun", "controller", SIGKILL, "middle", BROKEN.format(r"controller died \(signal SIGKILL\)")),
    Death("torchrun", PARENT, SIGTERM, "middle", "got signal: 15"),
    Death("torchrun", "rank 0", SIGKILL, "end", killed(0, 9)),
    Death("rack", "rank 1", SIGSTOP, "middle", LOST.format(1)),
    Death("rack", "controller", SIGTERM, "middle", "the controller is shutting down"),
    Death("rack", "switch", SIGSTOP, "middle", "Nothing came back at all: the switch does not run"),
    Death("train", PARENT, SIGKILL, "start", ""),
    Death("train", PARENT, SIGINT, "middle", "interrupted"),
    Death("train", "worker 1", SIGKILL, "middle", "worker 1 failed: signal SIGKILL"),
    Death("train", "worker 1", SIGSTOP, "middle", LOST.format(1)),
    Death("calibrate", PARENT, SIGKILL, "middle", ""),
    Death("calibrate", PARENT, SIGTERM, "middle", "interrupted; nothing was written"),
    Death("tail", "worker", SIGKILL, "middle", KILLED_ONE),
    Death("allreduce", PARENT, SIGKILL, "middle", ""),
    Death("training", PARENT, SIGTERM, "middle", ""),
    Death("mininet", PARENT, SIGTERM, "middle", ""),
]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Mapping[Death, "Future[None]"]]:
    """Yield what comes of each death. Several at a time: most of it is waiting."""
    here = [item for item in request.session.items if item.path == request.path]
    pool = ThreadPoolExecutor(AT_ONCE)
    yield {death: pool.submit(watch, death) for item in here for death in item.callspec.params.values()}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "death",
    [
        pytest.param(
            each, id=str(each), marks=[getattr(pytest.mark, NEEDS[each.job])] if each.job in NEEDS else []
        )
        for each in DEATHS + effort([], MORE_DEATHS)
    ],
)
def test_a_death_is_named_or_the_job_goes_on_and_nothing_is_left(
    death: Death, outcomes: "Mapping[Death, Future[None]]"
) -> None:
    outcomes[death].result()


def watch(death: Death) -> None:
    """Start the job, let the death happen, and check what comes of it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-")))
        (folder / "sums").mkdir()
        if death.when == "end":
            (folder / "sums" / "stop").touch()
            (folder / "sums" / "linger").touch()
        job = JOBS[death.job]
        there = stack.enter_context(rack(folder)) if death.job == "rack" else {}
        address = {"WEIR_CONTROLLER": f"unix:{folder}/controller.sock"} if there else {}
        command = [word.format(folder=folder / "sums") for word in job.command]
        run = stack.enter_context(started(folder, *command, environment=address))
        if death.when in job.says:
            run.wait_for(job.says[death.when])
        if death.when == "middle":
            find(run, job, next(iter(job.processes)))
        victim = there[death.who].process.pid if death.who in there else find(run, job, death.who)
        run.processes()  # what these have, they must not leave
        os.kill(victim, death.how)
        if death.goes_on:
            (folder / "sums" / "stop").touch()
        if death.says:
            run.wait_for(death.says, HANGS_S)
        if death.how is SIGSTOP and death.who.startswith("rank"):  # torchrun waits half a minute for it
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, SIGCONT)
        assert (run.wait(HANGS_S) == 0) is (death.goes_on and death.who != PARENT), run.said
        left = run.left(HANGS_S)
        if death.how is SIGKILL and death.who == PARENT and left:
            subprocess.run([*WEIR, "clean"], env=run.environment, check=True, capture_output=True)
            left = run.left()
        assert left == [], run.said


def find(run: Started, job: Job, who: str) -> int:
    """Return the process id of one of the job's processes."""
    if who == PARENT:
        return run.process.pid
    pattern, (_, _, number) = job.processes[who], who.partition(" ")
    return run.find(pattern, **({"RANK": number} if pattern == RANKS.get(who) else {}))


@contextlib.contextmanager
def rack(folder: Path) -> Iterator[dict[str, Started]]:
    """Run a switch and a controller for two hosts."""
    topology, ready, ports = (folder / name for name in ("topology.json", "ready", "ports"))
    grpc = f"unix:{folder}/switch.sock"
    described = single_switch(2, grpc, str(ports), target="soft")
    topology.write_text(described.model_dump_json(exclude_none=True))
    ports.mkdir()
    options = (topology, "--listen", f"unix:{folder}/controller.sock", "--lease", LEASE_S)
    for name in ("at-switch", "at-controller"):
        (folder / name).mkdir()
    with (
        started(
            folder / "at-switch",
            *WEIR,
            "switch",
            "--grpc",
            grpc,
            "--shm",
            ports,
            "--port",
            "1=shm",
            "--port",
            "2=shm",
        ) as switch,
        started(
            folder / "at-controller", *WEIR, "controller", "run", *options, "--ready-file", ready
        ) as controller,
    ):
        controller.until(ready.exists, "the controller")
        yield {"switch": switch, "controller": controller}
