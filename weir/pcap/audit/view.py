# SPDX-License-Identifier: Apache-2.0
"""An audit's report, for people."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule


def report_view(report: Report, limit: int) -> RenderableType:
    """Return a table of rules, one of workers, the first ``limit`` findings, what to do, and notes."""
    broken = Counter(finding.rule for finding in report.findings)
    rules = Table("rule", "", "checked", "broken")
    for column in rules.columns[2:]:
        column.justify = "right"
    for rule in Rule:
        count = f"{report.checked[rule]:,}" if report.checked[rule] else "never"
        found = Text(f"{broken[rule]:,}", "bold red") if broken[rule] else Text("0", "green")
        rules.add_row(rule.title, rule.promise, count, found if report.checked[rule] else "")
    parts: list[RenderableType] = [rules]
    if report.worker_lanes:
        parts.append(_workers(report))
    parts += [Text(str(finding), "red") for finding in report.findings[:limit]]
    if len(report.findings) > limit:
        parts.append(Text(f"{len(report.findings) - limit:,} more; --limit prints them"))
    for rule in Rule:
        if broken[rule]:
            parts.append(Text.assemble(("what to do", "bold"), f"  {rule.title}: {rule.remedy}"))
    for note, frames in report.notes.items():
        if frames:
            parts.append(Text(f"note: {frames:,} {note.value}", "yellow"))
    parts.append(
        Text(f"{report.weir:,} of {report.frames:,} frames are Weir's; {len(report.findings):,} findings")
    )
    return Group(*parts)


def _workers(report: Report) -> Table:
    """Return a table of what became of each worker's lanes."""
    table = Table("job", "worker", "lanes sent", "in a result", "returned", "no result")
    for column in table.columns[2:]:
        column.justify = "right"
    for (job, host), shares in sorted(report.worker_lanes.items()):
        numbers = (shares.entered, shares.included, shares.returned, shares.unknown)
        table.add_row(f"{job:#x}", host, *(f"{number:,}" for number in numbers))
    return table
