# SPDX-License-Identifier: Apache-2.0
"""``weir bench``: Weir beside its peers, in one run, on the same links."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from weir.bench import report
from weir.bench.case import Case, Limits, ParameterError, Run, UnavailableError, in_words
from weir.bench.results import Plot, Table
from weir.bench.suites import SUITES, UnknownCaseError, find, problems
from weir.bench.suites import verify as verdicts
from weir.methods import Plugin
from weir.report.tables import Json, print_json

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # a paragraph's lines are one
    help="Compare Weir with its peers: in the same run, over the same links, by ratios.",
)


def _cases(name: str) -> Sequence[Case]:
    try:
        return find(name)
    except UnknownCaseError as error:
        raise typer.BadParameter(str(error)) from None


def _assigned(given: Sequence[str] | None) -> dict[str, str]:
    """Return what ``--set`` assigns."""
    pairs = [text.partition("=") for text in given or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise typer.BadParameter(f"--set {wrong[0]}: NAME=VALUE")
    return {name: value for name, _, value in pairs}


@app.command("list")
def list_cases(
    name: Annotated[str, typer.Argument(metavar="[SUITE[/CASE]]", help="Suite or case; default: all.")] = "",
    as_json: Json = False,
) -> None:
    """List the benchmarks, or the parameters of one benchmark."""
    cases = _cases(name) if name else [case for suite in SUITES.values() for case in suite]
    if as_json:
        print_json([_as_figures(case) for case in cases])
        return
    console = Console()
    if "/" in name:
        (case,) = cases
        console.print(f"{case.path}: {case.summary}\ntakes: {case.takes}", highlight=False, markup=False)
        console.print(_parameters(case))
        return
    table = _plain_table("benchmark", "takes about", "what it measures")
    for case in cases:
        table.add_row(case.path, case.takes, case.summary)
    console.print(table)
    console.print(
        "Times hold for two idle cores. Parameters: weir bench list SUITE/CASE", style="dim", markup=False
    )


def _parameters(case: Case) -> RichTable:
    table = _plain_table("parameter", "default", "unit", "what it is")
    for name, default in (("--repeats", case.repeats), ("--seeds", case.seeds)):
        if default:
            table.add_row(name, str(default), "", "")
    for row in _parameter_rows(case):
        table.add_row(*row)
    return table


def _parameter_rows(case: Case) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, default, unit and meaning of each parameter."""
    values = case.parameters({})
    for each in fields(values):
        limits: Limits = each.metadata["limits"]
        about = f"{limits.about} ({limits})" if str(limits) else limits.about
        yield each.name, in_words(getattr(values, each.name)), limits.unit, about


def _as_figures(case: Case) -> dict[str, Any]:
    """Return a case for ``--json``."""
    keys = ("parameter", "default", "unit", "meaning")
    return {
        "benchmark": case.path,
        "takes": case.takes,
        "summary": case.summary,
        "repeats": case.repeats,
        "seeds": case.seeds,
        "parameters": [dict(zip(keys, row, strict=True)) for row in _parameter_rows(case)],
    }


def _seeds(case: Case, count: int | None, first: int | None) -> range:
    """Return the seeds of a case's runs."""
    if not case.seeds:
        return range(0)
    first, count = first or 1, count or (1 if first else case.seeds)
    return range(first, first + count)


def _plain_table(*heads: str) -> RichTable:
    table = RichTable(box=None, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


@app.command()
def run(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="SUITE[/CASE]", help="Suite or case: weir bench list shows all.")
    ],
    assigned: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Parameter of the case: weir bench list SUITE/CASE shows all. Repeatable.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the smallest sizes, to try a case out.")
    ] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Repetitions, after one for warm-up.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs, each with a different seed.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=1, help="The first seed; without --seeds, the only one.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Simulations at a time; default: one per core.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with every finished simulation; the same command continues from it.",
        ),
    ] = None,
    plugin: Plugin = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the figures (JSON) and pictures (PNG).")
    ] = Path("runs/bench"),
    record: Annotated[
        str,
        typer.Option(metavar="NAME", help="Also write bench/records/NAME.json, for weir bench results."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Run a case or a whole suite, print tables, and write every figure to a folder.

    The command fails if a mechanism that it measures did nothing. Cases that need root, BMv2 or a GPU say so.
    """
    cases, values = _cases(name), _assigned(assigned)
    if len(cases) > 1 and (values or record):
        raise typer.BadParameter("--set and --record are for a single case: weir bench run SUITE/CASE")
    for case in cases:
        options = (
            ("repeats", repeats, case.repeats),
            ("seeds", seeds, case.seeds),
            ("seed", seed, case.seeds),
        )
        for option, given, own in options:
            if given and not own and len(cases) == 1:
                raise typer.BadParameter(f"--{option}: {case.path} has none")
    console = Console(stderr=True)
    failures: list[str] = []
    begun = time.time()
    for case in cases:
        typer.echo(f"weir bench {case.path}: {case.summary}", err=True)
        if case is cases[0]:
            from weir.train.running import interruptible

            context.with_resource(interruptible())  # ends in order on SIGTERM, as on Ctrl-C
        one = Run(
            repeats=(1 if quick else repeats or case.repeats) if case.repeats else 0,
            seeds=_seeds(case, 1 if quick else seeds, seed),
            processes=processes,
            journal=journal,
            plugins=plugin or (),
            say=lambda text: console.print(text, highlight=False, markup=False),
            show=not as_json,
        )
        chosen, load = {**(case.quick if quick else {}), **values}, os.getloadavg()[0]
        tables: list[Table] = []
        failed = _measure(case, chosen, one, out, tables, len(cases) > 1)
        failures += failed
        if record and not failed:
            from weir.bench import records

            typer.echo(f"recorded: {records.write(record, case, chosen, one, tables, load)}", err=True)
    if as_json:
        paths = (_file(out, case).with_suffix(".json") for case in cases)
        made = [path for path in paths if path.exists() and path.stat().st_mtime > begun]
        print_json([json.loads(path.read_text(encoding="utf-8")) for path in made])
    if failures:
        typer.secho("\n".join(failures), fg="red", err=True)
        raise typer.Exit(1)


@app.command()
def verify(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[SUITE[/CASE]]", help="Suite or case; default: all.")] = "",
    processes: Annotated[
        int | None, typer.Option(min=1, help="Simulations at a time; default: one per core.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run small versions of the documented ratios, and fail if one is below its floor.

    Without a name, the command also repeats short records, and fails if a figure has moved.

    Only cases whose figures do not depend on the machine have floors: virtual time, and counted bytes. If the
    machine allows links between network namespaces, Gloo's links must also carry many frames at a time.
    """
    from weir.train.running import interruptible

    context.with_resource(interruptible())
    cases = _cases(name) if name else [case for suite in SUITES.values() for case in suite]
    console = Console(stderr=True)
    run = Run(
        0,
        range(1, 2),
        processes,
        say=lambda text: console.print(text, style="dim", highlight=False, markup=False),
    )
    table, failures = _plain_table("benchmark", "what is compared", "floor", "found"), []
    figures: list[dict[str, Any]] = []
    for found in verdicts(cases, run):
        if isinstance(found, str):
            failures.append(found)
            continue
        figures.append(
            {
                "benchmark": found.case.path,
                "compared": str(found.floor),
                "floor": found.floor.least,
                "found": found.reached,
                "kept": found.kept,
            }
        )
        reached = report.NONE if found.reached is None else report.factor(found.reached)
        table.add_row(found.case.path, str(found.floor), report.factor(found.floor.least), reached)
        if not found.kept:
            failures.append(f"{found.case.path}: {found.floor}: {reached}, below {found.floor.least:g}")
    if not name:
        from weir.bench.again import make_again
        from weir.bench.headlines import CLAIMS
        from weir.bench.records import read_all

        for moved in make_again(CLAIMS, read_all(), run):
            words = f"{moved.claim.name}, {moved.figure}: recorded {moved.recorded}, now {moved.found}"
            run.say(words)
            failures += [] if moved.same else [f"a figure has moved: {words}"]
    if as_json:
        print_json({"floors": figures, "failures": failures})
    else:
        Console().print(table)
    if failures:
        typer.secho("\n".join(failures), fg="red", err=True)
        raise typer.Exit(1)


@app.command()
def results(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a page differs.")] = False,
) -> None:
    """Write docs/results/results.md, and the headlines of other pages, from the records of a checkout."""
    from weir.bench.records import read_all
    from weir.bench.results_page import pages

    try:
        written = list(pages(read_all()))
    except LookupError as error:
        typer.secho(str(error), fg="red", err=True)
        raise typer.Exit(1) from None
    differ = False
    for path, text in written:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differ = True
        typer.echo(f"{'differs' if check else 'written'}: {path}", err=True)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and differ:
        raise typer.Exit(1)


def _measure(
    case: Case, values: Mapping[str, str], run: Run, out: Path, tables: list[Table], others: bool
) -> list[str]:
    """Run a case, show and write what it yields; return what went wrong.

    tables: to which its tables are added. others: further cases follow, so that one that cannot be measured
    here does not end all.
    """
    from weir.cluster import ClusterError
    from weir.netns import NamespaceError
    from weir.process.child import ChildError
    from weir.train.config import ConfigError

    try:
        parameters = case.parameters(values)
    except ParameterError as error:
        raise typer.BadParameter(f"{case.path}: {error}") from None
    try:
        for output in case.run(parameters, run):
            measured(case, parameters, run, output, tables, out)
    except ConfigError as error:
        raise typer.BadParameter(f"{case.path}: {error}") from None
    except (ChildError, ClusterError, NamespaceError, UnavailableError) as error:
        if not others:
            typer.echo(f"weir bench {case.path}: {error}", err=True)
            raise typer.Exit(1) from None
        return [f"{case.path}: {error}"]
    return list(problems(case, tables))


def measured(
    case: Case, parameters: object, run: Run, output: Table | Plot, tables: list[Table], out: Path
) -> None:
    """Show a table and write all that there are; or draw a picture."""
    from weir.train.folder import write_json

    out.mkdir(parents=True, exist_ok=True)
    path = _file(out, case)
    if isinstance(output, Plot):
        report.draw(path.with_suffix(".png"), output)
        run.say(f"drawn: {path.with_suffix('.png')}")
        return
    tables.append(output)
    if run.show:
        report.show(output)
    write_json(
        path.with_suffix(".json"), report.as_json(case.path, parameters, run.repeats, run.seeds, tables)
    )
    run.say(f"written: {path.with_suffix('.json')}")


def _file(out: Path, case: Case) -> Path:
    """Return the path of a case's files, without a suffix."""
    return out / case.path.replace("/", "-")
