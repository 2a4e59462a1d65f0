# SPDX-License-Identifier: Apache-2.0
"""Rounds as lines, and a capture as a table."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.pcap.rounds import ColumnSeen, PacketSeen, Round, Trace
from weir.report.words import byte_count

LEGEND = (
    "■ block with its lanes, · block without; →n the sender's next non-zero block, in a result the one "
    "asked for; – none"
)


def round_lines(
    found: Round, start: float, wrong: Iterable[str] = (), worker: int | None = None
) -> Iterator[Text]:
    """Yield a round: a heading, a line per contribution, a line for the result, and what is wrong with it.

    start: the capture's first time, in seconds. worker: leave out other workers' packets.
    """
    yield Text.assemble(
        (f"{found.began - start:12.6f}", "cyan"),
        (f"  job {found.job:#x} slot {found.slot} round {found.number}", "bold"),
        f"  {found.op.name}, blocks of {found.block}",
    )
    for packet in found.contributions:
        if worker in (None, packet.worker):
            again = Text(f"  copy {packet.copy}", "yellow") if packet.copy > 1 else Text()
            yield Text.assemble(
                _offset(packet, found), f"  worker {packet.worker:<2} ", _columns(packet), again
            )
    yield from _result_lines(found, worker)
    for problem in wrong:
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


def summary_table(
    trace: Trace, rounds: list[Round], wrong: Collection[tuple[str, int, int, int]]
) -> RenderableType:
    """Return totals over ``rounds``, a column per job, and what else the capture holds.

    wrong: keys of rounds in which a rule was broken.
    """
    jobs = totals(rounds, wrong)
    table = Table(show_header=bool(jobs))
    table.add_column("")
    for job in sorted(jobs):
        table.add_column(f"job {job:#x}", justify="right")
    columns = [jobs[job] for job in sorted(jobs)]
    for name in columns[0] if columns else ():
        shown = byte_count if name.startswith("bytes") else "{:,}".format
        table.add_row(_LABELS.get(name, name), *(shown(column[name]) for column in columns))
    notes = [Text(f"{trace.other} frames are not of the slot protocol")] if trace.other else []
    if trace.malformed:
        notes.append(Text(f"{len(trace.malformed)} malformed, the first: {trace.malformed[0][1]}", "red"))
    return Group(*([table] if jobs else [Text("no rounds")]), *notes)


_LABELS: Final = {
    "rounds with a result": "  with a result",
    "rounds in which a rule was broken": "  in which a rule was broken",
    "contributions with lanes": "  with lanes",
}


def totals(
    rounds: Iterable[Round], wrong: Collection[tuple[str, int, int, int]]
) -> dict[int, dict[str, int]]:
    """Add up rounds.

    Args:
        rounds: Rounds of any jobs.
        wrong: Keys of rounds in which a rule was broken.

    Returns:
        Counts by name, for each job.
    """
    jobs: dict[int, list[Round]] = defaultdict(list)
    for found in rounds:
        jobs[found.job].append(found)
    return {job: _totals(found, wrong) for job, found in jobs.items()}


def _totals(rounds: list[Round], wrong: Collection[tuple[str, int, int, int]]) -> dict[str, int]:
    up = [packet for found in rounds for packet in found.contributions]
    down = [packet for found in rounds for packet in found.results]
    return {
        "workers": len({packet.worker for packet in (*up, *down)}),
        "slots": len({found.slot for found in rounds}),
        "rounds": len(rounds),
        "rounds with a result": sum(found.complete for found in rounds),
        "rounds in which a rule was broken": sum(found.key in wrong for found in rounds),
        "contributions": len(up),
        "contributions with lanes": sum(any(c.lanes for c in packet.columns) for packet in up),
        "contributions sent again": sum(packet.copy > 1 for packet in up),
        "results": len(down),
        "results sent again": sum(packet.copy > 1 for packet in down),
        "bytes up": sum(packet.size for packet in up),
        "bytes down": sum(packet.size for packet in down),
    }
