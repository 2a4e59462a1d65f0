# SPDX-License-Identifier: Apache-2.0
"""``weir pcap FILE``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def _number(text: str) -> int:
    """Parse a decimal number, or a hexadecimal one with 0x. Raises ValueError."""
    return int(text, 0)


def pcap(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Capture file, pcap or pcapng.")],
    *,
    job: Annotated[
        int | None,
        typer.Option(parser=_number, metavar="JOB", help="Print only this job's rounds (0x… or decimal)."),
    ] = None,
    slot: Annotated[int | None, typer.Option(help="Print only this slot's rounds.")] = None,
    worker: Annotated[int | None, typer.Option(help="Print only rounds and packets of this worker.")] = None,
    limit: Annotated[int, typer.Option(help="Rounds to print at most; 0: the summary alone.")] = 100,
) -> None:
    """Print the rounds in a capture: the blocks that each worker sent, those asked for next, and the results.

    Every result is checked against the contributions in the capture. The exit status is 1 when one is wrong.
    """
    from weir.pcap.frames import CaptureError, read_frames
    from weir.pcap.rounds import Round, Trace
    from weir.pcap.view import LEGEND, round_lines, summary_table

    def wanted(found: Round) -> bool:
        packets = (*found.contributions, *found.results)
        return (
            job in (None, found.job)
            and slot in (None, found.slot)
            and (worker is None or any(packet.worker == worker for packet in packets))
        )

    try:
        with Console(stderr=True).status(f"reading {file}"):
            trace = Trace.of(read_frames(file))
    except CaptureError as error:
        typer.echo(f"weir pcap: {error}", err=True)
        raise typer.Exit(2) from None
    console = Console()
    rounds = [found for found in trace.rounds if wanted(found)]
    for found in rounds[:limit]:
        for line in round_lines(found, trace.rounds[0].began, worker):
            console.print(line, soft_wrap=True)
    if rounds[:limit]:
        console.print(LEGEND, style="dim")
    if 0 < limit < len(rounds):
        console.print(f"{len(rounds) - limit:,} more rounds; --limit {len(rounds)} prints them all")
    console.print(summary_table(trace, rounds))
    raise typer.Exit(1 if any(found.wrong for found in rounds) else 0)
