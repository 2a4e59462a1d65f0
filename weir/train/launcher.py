# SPDX-License-Identifier: Apache-2.0
"""``weir train`` from end to end: cluster, workers, reference run; what is written and shown about them."""

import contextlib
import importlib.metadata
import json
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Final, NoReturn

from rich.console import Console

from weir.cluster import ClusterError
from weir.network import NetworkSpec
from weir.train.config import TrainConfig
from weir.train.display import Display, make_display
from weir.train.messages import Failed, Message
from weir.train.place import Place, joined_place, start_place
from weir.train.record import ReplicasDifferError, RunRecord, StepSummary
from weir.train.report import write_report
from weir.train.spec import BackendName, WorkerSpec
from weir.train.summary import summarize, summary_view
from weir.train.watch import NetworkWatch
from weir.train.workers import Exited, Workers

EXIT_STATUS: Final = {"complete": 0, "failed": 1, "interrupted": 130}
USAGE: Final = 2
_TICK_S: Final = 0.2
_CAUSE_S: Final = 1.0  # how long further failures are listened to, to tell a cause from its consequences


class WorkerError(RuntimeError):
    """A worker failed or vanished; the message says which, and ends with its traceback or log."""


def train(config: TrainConfig, console: Console) -> int:
    """Train as configured; returns the process's exit status.

    Started by torchrun or Mininet (RANK, WORLD_SIZE and MASTER_ADDR are set), it is that one rank of a job,
    in the cluster of WEIR_CONTROLLER or what the backend makes without one, and rank 0 alone shows and
    writes something. Otherwise it starts a cluster and all workers on this machine. Ctrl-C ends everything
    and still writes what there is.
    """
    place = joined_place()
    if place is not None and config.network != NetworkSpec():
        console.print(
            "weir train: --topology, --links, --loss and --background build a network on this machine; "
            "this worker (RANK is set) joins one that is there",
            style="red", markup=False, soft_wrap=True,
        )  # fmt: skip
        return USAGE
    if place is not None:
        config = config.model_copy(update={"workers": place.size})
    leader = place is None or 0 in place.ranks
    try:
        session = _Session(config, make_display(config, console, quiet=not leader), leader=leader)
    except OSError as error:
        console.print(
            f"weir train: no folder for this run: {error}", style="red", markup=False, soft_wrap=True
        )
        return EXIT_STATUS["failed"]
    with session:
        with _interruptible():
            session.run_all(place)
        session.write_results()
    if leader:
        console.print(summary_view(config, session.records))
        console.print(f"written to {session.folder}/", highlight=False, soft_wrap=True)
    if session.problem:
        console.print(f"[bold red]weir:[/] {_escaped(session.problem)}", highlight=False, soft_wrap=True)
    return EXIT_STATUS[session.status]


def _starting(config: TrainConfig) -> str:
    shape = config.network.shape
    if shape.single:
        return "starting switch and controller"
    return f"starting {shape.racks} leaves, {shape.spines} spines and the controller"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


class _Session:
    """The runs of one ``weir train``, their records and files."""

    def __init__(self, config: TrainConfig, display: Display, *, leader: bool) -> None:
        self.config = config
        self.records: list[RunRecord] = []
        self.problem = ""
        self.status = "complete"
        self._display = display
        self._stack = contextlib.ExitStack()
        self._switch_events: dict[str, int] = {}
        if leader:
            self.folder = _run_folder(config)
        else:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-train-")))

    def __enter__(self) -> "_Session":
        self._steps: IO[str] = self._stack.enter_context(
            (self.folder / "steps.jsonl").open("w", encoding="utf-8", buffering=1)
        )
        self._stack.enter_context(self._display)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run_all(self, place: Place | None) -> None:
        """The Weir run, then the reference; ``place``: a cluster that is there already."""
        try:
            if place is None:
                self._display.phase(_starting(self.config))
                with start_place(self.config) as own:
                    self._run("weir", own)
                    self._switch_events = own.switch_events()
            else:
                self._run("weir", place)
            if self.config.reference:
                with tempfile.TemporaryDirectory(prefix="weir-gloo-") as store:
                    self._run("gloo", place or Place.of_all(self.config.workers, Path(store)))
        except KeyboardInterrupt:
            self._ended("interrupted", "")
        except (ClusterError, WorkerError, ReplicasDifferError) as error:
            self._ended("failed", str(error))

    def write_results(self) -> None:
        """summary.json and report.png."""
        self._display.phase("writing the report")
        summary = {**summarize(self.config, self.records, self._switch_events), "status": self.status}
        summary["problem"] = self.problem or None
        _write_json(self.folder / "summary.json", summary)
        write_report(self.folder / "report.png", self.config, self.records)

    def _ended(self, status: str, problem: str) -> None:
        self.status, self.problem = status, problem
        if self.records and self.records[-1].status == "running":
            self.records[-1].status = "interrupted" if status == "interrupted" else "failed"

    def _run(self, run: BackendName, place: Place) -> None:
        """One run over the ranks of ``place``, to its end."""
        record = RunRecord(run, place.ranks, self.config.epochs)
        self.records.append(record)
        self._display.phase("")
        self._display.begin(record)
        spec = WorkerSpec(
            config=self.config, backend=run, init_method=place.init_method(run), replicas=place.replicas
        )
        logs = self.folder / "logs" / run
        with (
            self._watched(run, place) as watch,
            Workers(spec.model_dump_json(), place.ranks, place.size, place.environment(), logs) as workers,
        ):
            left = set(place.ranks)
            while left:
                event = workers.next_event(_TICK_S)
                if watch is not None:
                    self._look(record, watch)
                if event is None:
                    place.check()
                elif isinstance(event, Failed) or (isinstance(event, Exited) and event.reason):
                    _raise_cause(event, workers)
                elif isinstance(event, Exited):
                    left.discard(event.rank)
                else:
                    self._take(record, event)
            if watch is not None:
                watch.look()
                self._look(record, watch)
        record.status = "complete"

    def _watched(
        self, run: BackendName, place: Place
    ) -> contextlib.AbstractContextManager[NetworkWatch | None]:
        """What the switches count, where there is more to see than one of them."""
        watched = run == "weir" and self.config.network_matters
        return place.watched() if watched else contextlib.nullcontext()

    def _look(self, record: RunRecord, watch: NetworkWatch) -> None:
        """Newest counts; says when a spine has died."""
        before, record.counts = record.counts, watch.counts
        for name, how in (record.counts.dead if record.counts else {}).items():
            if before is None or name not in before.dead:
                self._display.phase(f"{name} died ({how}); its slots are summed by the other spines")

    def _take(self, record: RunRecord, message: Message) -> None:
        news = record.add(message)
        if isinstance(news, StepSummary):
            self._steps.write(json.dumps(news.as_json()) + "\n")
        if news is not None:
            self._display.show(record, news)


def _raise_cause(first: Failed | Exited, workers: Workers) -> NoReturn:
    """Listen for further failures, then raise the one that made the others: a crash before an exception."""
    failures = [first]
    deadline = time.monotonic() + _CAUSE_S
    while (left := deadline - time.monotonic()) > 0:
        event = workers.next_event(left)
        if isinstance(event, Failed) or (isinstance(event, Exited) and event.reason):
            failures.append(event)
    cause = next((failure for failure in failures if isinstance(failure, Exited)), first)
    text = cause.reason if isinstance(cause, Exited) else cause.traceback
    others = [
        f"worker {f.rank} then: {f.error}" for f in failures if isinstance(f, Failed) and f is not cause
    ]
    raise WorkerError("\n".join([f"worker {cause.rank} failed: {(text or '').strip()}", *others]))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Make the first SIGINT or SIGTERM a KeyboardInterrupt; ignore later ones: cleanup is under way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_folder(config: TrainConfig) -> Path:
    """A new folder runs/<time>-<name>, with config.json in it."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.name}"
    for count in range(1, 1000):
        folder = config.out / (stem if count == 1 else f"{stem}-{count}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        versions = {name: importlib.metadata.version(name) for name in ("weir", "torch", "numpy")}
        versions["python"] = platform.python_version()
        _write_json(folder / "config.json", {**config.model_dump(mode="json"), "versions": versions})
        return folder
    raise FileExistsError(f"{config.out / stem} and 998 like it are there already")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
