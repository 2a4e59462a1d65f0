# SPDX-License-Identifier: Apache-2.0
"""``weir pcap show FILE`` and ``weir pcap audit FILE...``."""

import gc
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weir.report.tables import Json, print_json

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Print captures of the slot protocol, and check them against its rules.",
)


def _number(text: str) -> int:
    """Parse a decimal number, or a hexadecimal one with 0x. Raises ValueError."""
    return int(text, 0)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Capture file, pcap or pcapng.")],
    *,
    job: Annotated[
        int | None,
        typer.Option(parser=_number, metavar="JOB", help="Print only this job's rounds (0x… or decimal)."),
    ] = None,
    slot: Annotated[int | None, typer.Option(help="Print only this slot's rounds.")] = None,
    worker: Annotated[int | None, typer.Option(help="Print only rounds and packets of this worker.")] = None,
    limit: Annotated[int, typer.Option(help="Rounds to print at most; 0: only the summary.")] = 100,
    as_json: Json = False,
) -> None:
    """Print the rounds in a capture: each worker's blocks, the requested blocks, and the results.

    The command checks every round, as `weir pcap audit` does. The exit status is 1 if a rule was broken.
    """
    from weir.pcap.audit import PacketAudit
    from weir.pcap.frames import CaptureError, read_frames
    from weir.pcap.rounds import Round, Trace
    from weir.pcap.view import LEGEND, round_lines, summary_table, totals

    def wanted(found: Round) -> bool:
        packets = (*found.contributions, *found.results)
        return (
            job in (None, found.job)
            and slot in (None, found.slot)
            and (worker is None or any(packet.worker == worker for packet in packets))
        )

    trace, audit = Trace(), PacketAudit()
    try:
        with Console(stderr=True).status(f"reading {file}"):
            for seen in read_frames(file):
                trace.add(seen)
                audit.add(seen)
            audit.finish()
    except CaptureError as error:
        typer.echo(f"weir pcap show: {error}", err=True)
        raise typer.Exit(2) from None
    wrong: dict[tuple[str, int, int, int], list[str]] = defaultdict(list)
    for finding in audit.report.findings:
        if finding.round is not None:
            wrong[finding.round].append(finding.text)
    rounds = [found for found in trace.rounds if wanted(found)]
    broken = any(found.key in wrong for found in rounds)
    if as_json:
        print_json(
            {
                "rounds": [asdict(found) | {"broken": wrong.get(found.key, [])} for found in rounds[:limit]],
                "jobs": {f"{number:#x}": figures for number, figures in totals(rounds, wrong.keys()).items()},
                "other_frames": trace.other,
                "malformed_frames": len(trace.malformed),
            }
        )
        raise typer.Exit(1 if broken else 0)
    console = Console()
    for found in rounds[:limit]:
        for line in round_lines(found, trace.rounds[0].began, wrong.get(found.key, ()), worker):
            console.print(line, soft_wrap=True)
    if rounds[:limit]:
        console.print(LEGEND, style="dim")
    if 0 < limit < len(rounds):
        console.print(f"{len(rounds) - limit:,} more rounds; --limit {len(rounds)} prints them all")
    console.print(summary_table(trace, rounds, wrong.keys()))
    raise typer.Exit(1 if broken else 0)


@app.command()
def audit(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Captures, pcap or pcapng, of one run.")
    ],
    *,
    limit: Annotated[int, typer.Option(help="Findings to print at most.")] = 20,
    loss_budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of a worker's lanes that may be missing in a collective, such as the run's "
            "--loss-budget; default: not checked, because packets do not contain it.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check captures against the protocol's rules, with an independent decoder.

    Checks checksums, lengths and addresses; rounds, masks, sums (added again from the payloads, at every
    switch), audiences, losses, classes and ECN, trimming, and the settlements of flows. If interfaces are
    called "A > B", one for each direction of a link, or a switch's capture contains directions, it also
    checks for changes by devices on the way. With "A > B" it also checks the order of classes on a link and
    how evenly packets are sprayed.

    The exit status is 1 if a rule was broken. Each finding names the frames by file and number, and each
    broken rule has a remedy.
    """
    from weir.pcap.audit import PacketAudit
    from weir.pcap.audit.view import report_view
    from weir.pcap.frames import CaptureError

    gc.set_threshold(100_000, 50, 50)  # packets are not in circles, and to look for these takes a third
    try:
        with Console(stderr=True).status("reading") as status:
            report = PacketAudit.of_files(
                files, loss_budget, lambda frames: status.update(f"{frames:,} frames")
            ).report
    except CaptureError as error:
        typer.echo(f"weir pcap audit: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        print_json(report.as_json(limit))
    else:
        Console().print(report_view(report, limit), soft_wrap=True)
    raise typer.Exit(1 if report.findings else 0)
