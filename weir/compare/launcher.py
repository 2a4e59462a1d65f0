# SPDX-License-Identifier: Apache-2.0
"""``weir compare`` from end to end: one cluster, one training after the other, what is written and shown."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from weir.cluster import ClusterError
from weir.compare.config import Comparison
from weir.compare.page import write_page
from weir.compare.picture import draw
from weir.compare.progress import Progress, make_progress
from weir.compare.results import Run, make_rows, summarize
from weir.compare.view import result_view
from weir.report.tables import print_json
from weir.train.config import TrainConfig
from weir.train.deployment import Deployment, deploy, joined_deployment, starting_line
from weir.train.folder import FolderError, StepsFile, make_folder, write_json, writing
from weir.train.launcher import EXIT_STATUS, USAGE
from weir.train.messages import Evaluated, WorkerSpec, backend_of
from weir.train.record import ReplicasDifferError, RunRecord, Status, StepSummary
from weir.train.running import WorkerError, interruptible, run_workers

_STARTED_BY_OTHERS: Final = "weir compare: it starts all workers itself; RANK is set, as torchrun would"


def compare(comparison: Comparison, console: Console, *, as_json: bool = False) -> int:
    """Train and compare.

    A training that fails is noted, and the next one begins; only without a cluster there is no next. Ctrl-C
    ends everything and still writes what there is.

    Args:
        comparison: The trainings.
        console: Where progress, results and errors go.
        as_json: Print folder and content of compare.json to standard output, and no table.

    Returns:
        The process's exit status.
    """
    if joined_deployment() is not None:
        console.print(_STARTED_BY_OTHERS, style="red", markup=False, soft_wrap=True)
        return USAGE
    try:
        session = _Session(comparison, make_progress(comparison, console))
    except FolderError as error:
        console.print(f"weir compare: {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_STATUS["failed"]
    with session:
        with interruptible():
            session.run_all()
        session.write_results()
    if as_json:
        print_json({"folder": session.folder, **session.summary})
    else:
        console.print(result_view(comparison, make_rows(comparison, session.runs)))
    console.print(f"written to {session.folder}/", highlight=False, soft_wrap=True)
    for problem in session.problems:
        console.print(f"[bold red]weir:[/] {escape(problem)}", highlight=False, soft_wrap=True)
    return EXIT_STATUS[session.status]


class _Session:
    """The trainings of one comparison, and the files about them."""

    def __init__(self, comparison: Comparison, progress: Progress) -> None:
        self.comparison = comparison
        self.runs: list[Run] = []
        self.interrupted = False
        self.summary: dict[str, Any] = {}
        self._general_problem = ""
        self._progress = progress
        self._stack = contextlib.ExitStack()
        self.folder = make_folder(comparison.out, comparison.name, comparison.as_json())
        self._steps = self._stack.enter_context(contextlib.closing(StepsFile(self.folder)))

    def __enter__(self) -> "_Session":
        self._stack.enter_context(self._progress)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def problems(self) -> list[str]:
        """Return why trainings failed, and what ended them all: no cluster, or no room for files."""
        found = [f"{run.method}, seed {run.seed}: {run.problem}" for run in self.runs if run.problem]
        return [*found, *filter(None, [self._general_problem])]

    @property
    def status(self) -> Status:
        """Status of the whole comparison."""
        if self.interrupted:
            return "interrupted"
        return "failed" if self.problems else "complete"

    def run_all(self) -> None:
        """Run all trainings, over one cluster."""
        try:
            self._progress.phase(starting_line(self.comparison.any))
            with deploy(self.comparison.any) as deployment:
                self._progress.phase("")
                for method, seed, config in self.comparison:
                    self._run(method, seed, config, deployment)
        except KeyboardInterrupt:
            self.interrupted = True
            if self.runs and self.runs[-1].record.status == "running":
                self.runs[-1].record.status = "interrupted"
        except (ClusterError, FolderError) as error:
            self._general_problem = str(error)
            if self.runs and self.runs[-1].record.status == "running":
                self.runs[-1].record.status = "failed"

    def write_results(self) -> None:
        """Write compare.json, compare.png and compare.html, as far as there is room."""
        self._progress.phase("drawing")
        self.summary = summarize(self.comparison, self.runs, self.status, "\n".join(self.problems))
        picture, page = self.folder / "compare.png", self.folder / "compare.html"
        rows = make_rows(self.comparison, self.runs)
        try:
            write_json(self.folder / "compare.json", self.summary)
            with writing(picture):
                draw(picture, self.comparison, rows, self.runs)
            with writing(page):
                write_page(page, self.comparison, rows, picture)
        except FolderError as error:
            self._general_problem = self._general_problem or str(error)

    def _run(self, method: str, seed: int, config: TrainConfig, deployment: Deployment) -> None:
        """Run one training, to its end or its failure."""
        backend = backend_of(config)
        record = RunRecord(backend, deployment.ranks, config.epochs)
        run = Run(method, seed, config, record)
        self.runs.append(run)
        self._progress.begin(run, self.runs)
        name = f"{method}-{seed}"
        spec = WorkerSpec(config=config, backend=backend, init_method=deployment.init_method(name))
        marks = {"method": method, "seed": seed}

        def news(record: RunRecord, news: StepSummary | Evaluated) -> None:
            self._take(marks, record, news)

        try:
            run_workers(spec, deployment, record, self.folder / "logs" / name, news)
        except (WorkerError, ReplicasDifferError) as error:
            record.status, run.problem = "failed", str(error)
            deployment.check()
        self._progress.ended(run)

    def _take(self, marks: Mapping[str, object], record: RunRecord, news: StepSummary | Evaluated) -> None:
        if isinstance(news, StepSummary):
            line = {**marks, **news.as_json()}
            del line["run"]
            self._steps.write(line)
        self._progress.show(record, news)
