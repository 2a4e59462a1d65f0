# SPDX-License-Identifier: Apache-2.0
"""Rounds as lines, and a capture as a table."""

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.pcap.rounds import ColumnSeen, PacketSeen, Round, Trace
from weir.train.words import byte_count

LEGEND = (
    "■ block with its lanes, · block without; →n the sender's next non-zero block, in a result the one "
    "asked for; – none"
)


def round_lines(found: Round, start: float, worker: int | None = None) -> Iterator[Text]:
    """A round: a heading, a line per contribution, a line for the result.

    start: the capture's first time, in seconds. worker: leave out other workers' packets.
    """
    yield Text.assemble(
        (f"{found.began - start:12.6f}", "cyan"),
        (f"  job {found.job} slot {found.slot} round {found.number}", "bold"),
        f"  {found.op.name}, blocks of {found.block}",
    )
    for packet in found.contributions:
        if worker in (None, packet.worker):
            again = Text(f"  copy {packet.copy}", "yellow") if packet.copy > 1 else Text()
            yield Text.assemble(
                _offset(packet, found), f"  worker {packet.worker:<2} ", _columns(packet), again
            )
    yield from _result_lines(found, worker)
    for problem in found.wrong:
        yield Text(f"{'':14}WRONG: {problem}", "bold red")


def _result_lines(found: Round, worker: int | None) -> Iterator[Text]:
    if not found.complete:
        yield Text(f"{'':14}no result in this capture", "yellow")
        return
    first = found.results[0]
    firsts = [p.worker for p in found.results if p.copy == 1]
    again = [p.worker for p in found.results if p.copy > 1]
    yield Text.assemble(
        _offset(first, found),
        ("  result    ", "green"),
        _columns(first),
        f"  of {_workers(first.included)} to {', '.join(map(str, firsts))}",
        Text(f"; again to {', '.join(map(str, again))}", "yellow") if again else "",
    )


def _offset(packet: PacketSeen, found: Round) -> Text:
    return Text(f"{(packet.time - found.began) * 1e6:+10.1f} µs", "dim")


def _columns(packet: PacketSeen) -> Text:
    return Text("  ").join(_column(column) for column in packet.columns)


def _column(column: ColumnSeen) -> Text:
    if column.block is None and column.next is None:
        return Text("–", "dim")
    here = "–" if column.block is None else f"{column.block}{'■' if column.lanes else '·'}"
    then = "–" if column.next is None else str(column.next)
    return Text.assemble((here, "" if column.lanes else "dim"), (f"→{then}", "dim"))


def _workers(mask: int) -> str:
    return ", ".join(str(worker) for worker in range(32) if mask >> worker & 1) or "nobody (no lanes)"


def summary_table(trace: Trace, rounds: list[Round]) -> RenderableType:
    """Totals per job over ``rounds``, and what else the capture holds."""
    table = Table(title="jobs", title_justify="left")
    for name in ("job", "workers", "slots", "rounds", "complete", "contributions", "results", "copies",
                 "bytes up", "bytes down", "with lanes", "wrong"):  # fmt: skip
        table.add_column(name, justify="right")
    jobs: dict[int, list[Round]] = defaultdict(list)
    for found in rounds:
        jobs[found.job].append(found)
    for job, its in sorted(jobs.items()):
        table.add_row(*_job_cells(job, its))
    notes = [Text(f"{trace.other} frames are not Weir's")] if trace.other else []
    if trace.malformed:
        notes.append(Text(f"{len(trace.malformed)} malformed, the first: {trace.malformed[0][1]}", "red"))
    return Group(table, *notes)


def _job_cells(job: int, rounds: list[Round]) -> list[str]:
    up = [packet for found in rounds for packet in found.contributions]
    down = [packet for found in rounds for packet in found.results]
    wrong = sum(bool(found.wrong) for found in rounds)
    return [
        str(job),
        str(len({packet.worker for packet in (*up, *down)})),
        str(len({found.slot for found in rounds})),
        f"{len(rounds):,}",
        f"{sum(found.complete for found in rounds):,}",
        f"{len(up):,}",
        f"{len(down):,}",
        f"{sum(found.duplicates for found in rounds):,}",
        byte_count(sum(packet.size for packet in up)),
        byte_count(sum(packet.size for packet in down)),
        f"{sum(any(c.lanes for c in packet.columns) for packet in up):,}",
        f"{wrong:,}",
    ]
