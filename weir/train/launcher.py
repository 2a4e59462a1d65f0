# SPDX-License-Identifier: Apache-2.0
"""``weir train`` from end to end: cluster, workers, reference run; what is written and shown about them."""

import contextlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from softp4.native.scratch import scratch_folder
from weir.cluster import ClusterError
from weir.netns import NamespaceError
from weir.network import NetworkSpec
from weir.report.tables import print_json
from weir.train.checkpoint import FOLDER, CheckpointError, has_checkpoint, latest
from weir.train.config import TrainConfig
from weir.train.deployment import Deployment, deploy, deploy_reference, joined_deployment, starting_line
from weir.train.display import Display, make_display
from weir.train.folder import FolderError, StepsFile, make_folder, write_json, writing
from weir.train.messages import BackendName, Evaluated, WorkerSpec
from weir.train.record import ReplicasDifferError, RunRecord, Status, StepSummary
from weir.train.report import write_report
from weir.train.running import WorkerError, interruptible, run_workers
from weir.train.summary import summarize, summary_view
from weir.train.watch import NetworkWatch
from weir.train.words import idle_mechanisms

EXIT_STATUS: Final = {"complete": 0, "failed": 1, "interrupted": 130}
USAGE: Final = 2
_ERRORS: Final = (
    ClusterError, NamespaceError, WorkerError, ReplicasDifferError, FolderError, CheckpointError,
)  # fmt: skip


def train(config: TrainConfig, console: Console, *, as_json: bool = False) -> int:
    """Train as configured.

    Started by torchrun or Mininet (RANK, WORLD_SIZE and MASTER_ADDR are set), it is that one rank of a job,
    in the cluster of WEIR_CONTROLLER or what the backend makes without one, and rank 0 alone shows and
    writes something. Otherwise it starts a cluster and all workers on this machine. Ctrl-C ends everything
    and still writes what there is. A run under load fails, too, in which something was switched on and did
    nothing.

    Args:
        config: The settings.
        console: Where progress, results and errors go.
        as_json: Print folder and content of summary.json to standard output, and no table.

    Returns:
        The process's exit status.
    """
    deployment = joined_deployment()
    if deployment is not None and config.network != NetworkSpec():
        console.print(
            "weir train: --topology, --links, loss and background build a network on this machine; "
            "this worker (RANK is set) joins an existing one",
            style="red", markup=False, soft_wrap=True,
        )  # fmt: skip
        return USAGE
    if deployment is not None and (config.save_every or config.resume):
        console.print(
            "weir train: --set save_every and --resume need workers of its own; RANK is set",
            style="red", markup=False, soft_wrap=True,
        )  # fmt: skip
        return USAGE
    if deployment is not None:
        config = config.model_copy(update={"workers": deployment.size})
    leader = deployment is None or 0 in deployment.ranks
    try:
        session = _Session(config, make_display(config, console, quiet=not leader), leader=leader)
    except FolderError as error:
        console.print(f"weir train: {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_STATUS["failed"]
    with session:
        with interruptible():
            session.run_all(deployment)
        session.write_results()
    if leader:
        if as_json:
            print_json({"folder": session.folder, **session.summary})
        else:
            console.print(summary_view(config, session.records, session.status))
        console.print(f"written to {session.folder}/", highlight=False, soft_wrap=True)
        if not _can_draw():
            console.print("no report.png without matplotlib: pip install 'weir-ina[train]'", markup=False)
    if session.problem:
        console.print(f"[bold red]weir:[/] {escape(session.problem)}", highlight=False, soft_wrap=True)
    idle = [words for record in session.records for words in idle_mechanisms(config, record)]
    if leader and idle and (config.loss or config.background != "none"):
        console.print(f"[bold red]weir:[/] did nothing under load: {escape('; '.join(idle))}", soft_wrap=True)
        return EXIT_STATUS["failed"]
    return EXIT_STATUS[session.status]


def _can_draw() -> bool:
    """Tell whether there is matplotlib, which a plain installation lacks."""
    return importlib.util.find_spec("matplotlib") is not None


class _Session:
    """The runs of one ``weir train``, their records and files."""

    def __init__(self, config: TrainConfig, display: Display, *, leader: bool) -> None:
        self.config = config
        self.records: list[RunRecord] = []
        self.problem = ""
        self.status: Status = "complete"
        self._display = display
        self._stack = contextlib.ExitStack()
        self._switch_events: dict[str, int] = {}
        self.summary: dict[str, Any] = {}
        if leader:
            self.folder = make_folder(config.out, config.name, config.model_dump(mode="json"))
        else:
            self.folder = self._stack.enter_context(scratch_folder("weir-train"))
        self._steps = self._stack.enter_context(contextlib.closing(StepsFile(self.folder)))

    def __enter__(self) -> "_Session":
        self._stack.enter_context(self._display)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run_all(self, deployment: Deployment | None) -> None:
        """Run Weir, then the reference; ``deployment``: a cluster that is there already."""
        try:
            if deployment is None:
                self._display.phase(starting_line(self.config))
                with deploy(self.config) as own:
                    self._run("weir", own)
                    self._switch_events = own.switch_events()
            else:
                self._run("weir", deployment)
            if self.config.reference:
                with (
                    contextlib.nullcontext(deployment)
                    if deployment
                    else deploy_reference(self.config) as there
                ):
                    self._run("gloo", there)
        except KeyboardInterrupt:
            self._ended("interrupted", "")
        except _ERRORS as error:
            self._ended("failed", str(error))

    def write_results(self) -> None:
        """Write summary.json and report.png, as far as there is room; the latter where matplotlib is."""
        self._display.phase("writing the report")
        self.summary = summarize(self.config, self.records, self._switch_events)
        self.summary |= {"status": self.status, "problem": self.problem or None}
        picture = self.folder / "report.png"
        try:
            write_json(self.folder / "summary.json", self.summary)
            if _can_draw():
                with writing(picture):
                    write_report(picture, self.config, self.records)
        except FolderError as error:
            self._ended("failed", self.problem or str(error))

    def _ended(self, status: Status, problem: str) -> None:
        self.status, self.problem = status, problem
        if self.records and self.records[-1].status == "running":
            self.records[-1].status = "interrupted" if status == "interrupted" else "failed"

    def _run(self, run: BackendName, deployment: Deployment) -> None:
        """Run once over the ranks of ``deployment``, to the end."""
        save, resume = self._checkpoints(run)
        before = latest(resume).step if resume is not None else 0
        record = RunRecord(run, deployment.ranks, self.config.epochs, before)
        self.records.append(record)
        self._display.phase("")
        self._display.begin(record)
        spec = WorkerSpec(
            config=self.config,
            backend=run,
            init_method=deployment.init_method(run),
            replicas=deployment.replicas,
            save=save,
            resume=resume,
        )

        def news(record: RunRecord, news: StepSummary | Evaluated) -> None:
            if isinstance(news, StepSummary):
                record.clock(deployment.processor_time())
            self._news(record, news)

        watched = run == "weir" and self.config.network_matters  # there is more to see than one switch
        run_workers(
            spec,
            deployment,
            record,
            self.folder / "logs" / run,
            news,
            (lambda watch: self._look(record, watch)) if watched else None,
        )

    def _checkpoints(self, run: BackendName) -> tuple[Path | None, Path | None]:
        """Return where a run's checkpoints go, and where it goes on from; None: they are not, it begins."""
        save = (self.folder / FOLDER / run).resolve() if self.config.save_every else None
        resume = self.config.resume and (self.config.resume / FOLDER / run).resolve()
        return save, resume if resume and has_checkpoint(resume) else None

    def _look(self, record: RunRecord, watch: NetworkWatch) -> None:
        """Take the newest counts; say when a spine has died."""
        before, record.counts = record.counts, watch.counts
        for name, how in (record.counts.dead if record.counts else {}).items():
            if before is None or name not in before.dead:
                self._display.phase(f"{name} died ({how}); its slots are summed by the other spines")

    def _news(self, record: RunRecord, news: StepSummary | Evaluated) -> None:
        if isinstance(news, StepSummary):
            self._steps.write(news.as_json())
        self._display.show(record, news)
