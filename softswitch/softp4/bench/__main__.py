# SPDX-License-Identifier: Apache-2.0
"""``python -m softp4.bench`` measures the switch beside BMv2, where that is on PATH, and prints tables."""

import argparse
from collections.abc import Iterable, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from softp4.bench import lookups, requests


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m softp4.bench", description=__doc__)
    parser.add_argument(
        "what", choices=("lookups", "requests"), help="large tables; or entries over P4Runtime"
    )
    parser.add_argument("--repeats", type=int, default=3, help="repetitions, of which the median counts (3)")
    parser.add_argument(
        "--entries", type=int, default=10_000, help="of the router's or the written table (10000)"
    )
    parser.add_argument("--rules", type=int, default=1_000, help="of the access list (1000)")
    options = parser.parse_args()
    if options.what == "lookups":
        _lookups(options.entries, options.rules, options.repeats)
    else:
        _requests(options.entries, options.repeats)


def _lookups(entries: int, rules: int, repeats: int) -> None:
    rows = []
    for case, size in ((lookups.ROUTER, entries), (lookups.ACL, rules)):
        rates = lookups.compare(case, size, 20_000, repeats)
        rows.append((f"{case.name}, {size:,} entries", rates))
    _show(f"Packets a second in memory, {lookups.LENGTH}-byte frames", rows)


def _requests(entries: int, repeats: int) -> None:
    for name, case in requests.PROGRAMS.items():
        rates = requests.compare(case, entries, 200, repeats)
        rows = [
            (work, {kind: [one[work] for one in every] for kind, every in rates.items()})
            for work in requests.WORK
        ]
        _show(f"Entries a second over P4Runtime: {name}, {entries:,} entries, 200 in a Write", rows)


def _show(title: str, rows: Sequence[tuple[str, dict[str, list[float]]]]) -> None:
    """Print the median of each contender, and how many times as fast the first one is."""
    kinds = list(rows[0][1])
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("")
    for kind in [*kinds, *(f"x {kind}" for kind in kinds[1:])]:
        table.add_column(kind, justify="right")
    for label, rates in rows:
        middles = [median(rates[kind]) for kind in kinds]
        table.add_row(label, *_numbers(middles), *(f"{middles[0] / other:.3g}" for other in middles[1:]))
    Console().print(table)


def _numbers(values: Iterable[float]) -> Iterable[str]:
    return (f"{value:,.0f}" for value in values)


if __name__ == "__main__":
    main()
