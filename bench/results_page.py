# SPDX-License-Identifier: Apache-2.0
"""The page of results, docs/results/results.md, and the sentences that other pages quote from it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from weir.bench.claims import Claim, Figure, Published
from weir.bench.headlines import CLAIMS, PUBLISHED
from weir.bench.records import Record
from weir.bench.suites import SUITES

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = "docs/results/results.md"
MARK: Final = re.compile(r"(<!-- claim ([a-z0-9-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)

_HEAD: Final = """\
<!-- Written by `weir bench results`; do not edit. -->
# Results

Every headline of these pages stands here, with the run that it comes from. `weir bench results` writes this
page from the records in [`bench/records/`](../../bench/records/); a test fails where a page and the records
differ. `weir bench verify` runs the machine-independent ones again. It fails where a figure has moved, where
a [ratio](#floors) is below its floor, or where a result is better than its line allows.

A record is one run of one command, with all repetitions. To replace one, run its command with
`--record NAME` (with `sudo` for links), then `weir bench results`. `±` is half the range of the repetitions
or seeds, relative to the median. Do not compare absolute times across machines.
"""


def render(records: Mapping[str, Record]) -> str:
    """Return the page."""
    parts = [_HEAD]
    for claim in CLAIMS:
        parts.append(f"## {claim.title}\n")
        parts += _section(claim, records)
    parts += ["## Floors\n", _floors(), "## Published figures\n", _published(PUBLISHED, records)]
    return "\n".join(parts)


def _section(claim: Claim, records: Mapping[str, Record]) -> Iterator[str]:
    said = claim.said(records)
    yield f"**{said[0].upper()}{said[1:]}.** {claim.conditions}\n"
    for name in claim.records:
        record = records[name]
        yield f"```\n{record.command}\n```\n"
        yield from _tables(record, [each for each in claim.figures.values() if name in each.records])
        yield f"{_where(record)} {_again(claim)}\n"


def _where(record: Record) -> str:
    machine = record.machine
    return (
        f"Record [`{record.name}`](../../bench/records/{record.name}.json), {record.date}: "
        f"{machine['processors']} processors ({machine['processor']}), load {machine['load before']} before "
        f"the run, Linux {machine['kernel']}."
    )


def _again(claim: Claim) -> str:
    if claim.again:
        return "`weir bench verify` makes it again."
    return ""


def _tables(record: Record, figures: Sequence[Figure]) -> Iterator[str]:
    """Yield the record's rows that figures come from."""
    for table, (heads, texts) in zip(record.tables, record.texts, strict=True):
        wanted = [
            row for each in figures for found, *rows in each.rows(record) if found is table for row in rows
        ]
        lines = [
            text for row, text in zip(table.rows, texts, strict=True) if any(row is one for one in wanted)
        ]
        if lines:
            yield f"{table.title}:\n"
            yield from (
                f"| {' | '.join(_cell(each) for each in line)} |" for line in (heads, ["---"] * len(heads))
            )
            yield "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _floors() -> str:
    lines = [
        f"| `{case.path}` | {floor} | {floor.least:g} |"
        for cases in SUITES.values()
        for case in cases
        for floor in case.floors
    ]
    head = (
        "`weir bench verify` measures a small version of these cases, in virtual time or by counting bytes, "
        "and fails where\na ratio is below its floor:\n\n| case | ratio | floor |\n| --- | --- | --- |\n"
    )
    return head + "\n".join(lines) + "\n"


def _published(published: Sequence[Published], records: Mapping[str, Record]) -> str:
    by_name = {claim.name: claim for claim in CLAIMS}

    def ours(each: Published) -> str:
        found = [by_name[name] for name in each.claims]
        return "; ".join(f"[{one.title}](#{_anchor(one)}): {one.said(records)}" for one in found) or "–"

    def command(each: Published) -> str:
        return f"`{each.command}`" if each.command else "with the claim" if each.claims else "–"

    lines = [
        f"| {each.number} | {each.system} | {each.figure} | {ours(each)} | {each.twin or '–'} | "
        f"{each.counter or '–'} | {command(each)} | {each.words} |"
        for each in published
    ]
    head = (
        "Figures of the systems that Weir builds on, as their papers or code state them, and Weir's beside "
        "them. Their\nconditions differ from Weir's; the last column says how, or why there is no figure. A "
        "twin is compared\nwith Weir's figure; a counter shows that the mechanism acted.\n\n"
        "| | system | published | Weir | twin | counter | command | conditions |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return head + "\n".join(lines) + "\n"


def _anchor(claim: Claim) -> str:
    return re.sub(r"[^a-z0-9 -]", "", claim.title.lower()).replace(" ", "-")


def quoted(text: str, records: Mapping[str, Record]) -> str:
    """Return a page's text with the words of its claims as the records have them.

    Raises:
        LookupError: there is no such claim.
    """
    by_name = {claim.name: claim for claim in CLAIMS}

    def words(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        if name not in by_name:
            raise LookupError(f"there is no claim {name!r}")
        return f"{begin}{by_name[name].said(records)}{end}"

    return MARK.sub(words, text)


def pages(records: Mapping[str, Record]) -> Iterator[tuple[Path, str]]:
    """Yield every page that figures are written to, with the text that it is to have."""
    yield ROOT / PAGE, render(records)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        if path != ROOT / PAGE and MARK.search(text):
            yield path, quoted(text, records)
