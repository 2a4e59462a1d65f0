# SPDX-License-Identifier: Apache-2.0
"""Rows of what ``weir bench gpu`` has measured, and the tables that show them."""

from collections.abc import Sequence
from statistics import median
from typing import Any, Final, TypeAlias

from weir.bench.gpu_allreduce import CONTENDERS, AllreduceItem
from weir.bench.gpu_copy import WAYS as COPIES
from weir.bench.gpu_copy import CopyItem
from weir.bench.gpu_exchange import ExchangeItem
from weir.bench.gpu_place import PIECES
from weir.bench.gpu_ranks import Outcome
from weir.bench.gpu_train import WAYS, TrainItem
from weir.bench.table import show, spread
from weir.report.words import factor

Row: TypeAlias = dict[str, Any]

_EXACT: Final = ("elements", "buckets")  # the same on all ranks


def rows_of(outcome: Outcome) -> list[Row]:
    """Return the rows of one item, with the slowest rank's time of each repetition; one if it failed."""
    item, ranks = outcome.item, outcome.ranks
    facts: Row = {"case": item.case, "device": item.device}
    if outcome.error:
        return [{**facts, "name": item.name, "failed": outcome.error}]
    match item:
        case CopyItem():
            return [{**facts, **_copy(item, ranks)}]
        case AllreduceItem():
            return [{**facts, **_allreduce(item, ranks, name)} for name in item.contenders]
        case ExchangeItem():
            own = {"sparsifier": item.sparsifier, "density": item.density, "local": item.local}
        case TrainItem():
            tokens = item.batch * item.length * len(ranks)
            own = {"way": item.way, "losses": ranks[0]["losses"], "tokens": tokens}
    return [{**facts, **own, **_slowest(ranks), **_means(ranks)}]


def _slowest(ranks: Sequence[Any]) -> Row:
    seconds = [max(together) for together in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    return {"seconds": seconds, "median_s": median(seconds)}


def _means(ranks: Sequence[Any]) -> Row:
    """Return the means over the ranks of all single numbers."""
    names = [name for name, value in ranks[0].items() if isinstance(value, int | float)]
    means = {name: sum(rank[name] for rank in ranks) / len(ranks) for name in names}
    return {name: ranks[0][name] if name in _EXACT else mean for name, mean in means.items()}


def _copy(item: CopyItem, ranks: Sequence[Any]) -> Row:
    """Return rates in bytes a second: of a rank in one direction."""
    taken = [rank["seconds"] for rank in ranks if rank["seconds"]]
    seconds = {way: [max(each) for each in zip(*(one[way] for one in taken), strict=True)] for way in COPIES}
    rates = {way: item.size / median(seconds[way]) for way in COPIES}
    return {"ranks": len(taken), "bytes": item.size, "seconds": seconds, "rates": rates}


def _allreduce(item: AllreduceItem, ranks: Sequence[Any], contender: str) -> Row:
    seconds = {
        name: [max(together) for together in zip(*(rank["seconds"][name] for rank in ranks), strict=True)]
        for name in (item.contenders[0], contender)
    }
    middle, error = median(seconds[contender]), max(rank["errors"][contender] for rank in ranks)
    return {
        "contender": contender,
        "bytes": 4 * item.elements,
        "seconds": seconds[contender],
        "median_s": middle,
        "x_gloo": median(seconds[item.contenders[0]]) / middle,
        "bytes_per_s": 4 * item.elements / middle,
        "error": error,
        "right": error <= item.bound(contender, len(ranks)),
    }


def complete(rows: Sequence[Row]) -> None:
    """Add to each row of sums the ratio to Gloo on the GPU, and the share of the rate of copies."""
    copies = [row["rates"]["both"] for row in rows if "rates" in row and row["ranks"] > 1]
    sums = [row for row in rows if "contender" in row]
    peers = {
        row["bytes"]: row["median_s"]
        for row in reversed(sums)
        if row["contender"] == "gloo" and row["device"] == "cuda"
    }
    for row in sums:
        if row["bytes"] in peers:
            row["x_gloo_cuda"] = peers[row["bytes"]] / row["median_s"]
        if copies and row["device"] == "cuda":
            row["of_copies"] = row["bytes_per_s"] / copies[0]


def brief(row: Row) -> str:
    """Return a row as a line that is shown as soon as it is there."""
    if "failed" in row:
        lines = row["failed"].splitlines()
        return f"{row['name']} failed: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"
    if "rates" in row:
        rates = ", ".join(f"{way} {rate / 1e9:.1f}" for way, rate in row["rates"].items())
        return f"copies by {row['ranks']}, GB/s of each: {rates}"
    loss = f", loss {row['losses'][-1]:.3f}" if "losses" in row else ""
    return f"{_label(row)}: {_time(row)} ms{loss}"


def _label(row: Row) -> str:
    if "contender" in row:
        many = f", {row['threads']} threads" if row["threads"] > 1 else ""
        device = "" if row["device"] == "cuda" else f" {row['device']}"
        return f"{row['bytes'] / 1e6:g} MB {CONTENDERS[row['contender']]}{device}{many}"
    if "sparsifier" in row:
        return f"{row['sparsifier']}{' local' if row['local'] else ''} {row['device']}"
    return WAYS[row["way"]].words


def _time(row: Row) -> str:
    milliseconds = 1e3 * row["median_s"]
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def report(case: str, rows: Sequence[Row]) -> None:
    """Print the table of one case's rows, and the errors of those that failed."""
    show_case = {
        "copy": _show_copies,
        "allreduce": _show_sums,
        "exchange": _show_exchanges,
        "train": _show_training,
    }[case]
    show_case([row for row in rows if "failed" not in row], [brief(row) for row in rows if "failed" in row])


def _show_copies(rows: Sequence[Row], failed: Sequence[str]) -> None:
    show(
        "Copies between pinned host memory and the device, GB/s",
        ("", "down", "up", "both: each way", "both: all"),
        [
            (
                f"{row['ranks']} rank{'s' if row['ranks'] > 1 else ''}, each",
                *(f"{row['rates'][way] / 1e9:.1f}" for way in COPIES),
                f"{2 * row['ranks'] * row['rates']['both'] / 1e9:.1f}",
            )
            for row in rows
        ],
        [*failed, "down: from the device; both: in both directions at once; all: of all ranks together"],
    )


def _show_sums(rows: Sequence[Row], failed: Sequence[str]) -> None:
    def share(row: Row, name: str, form: str) -> str:
        return form.format(row[name]) if name in row else "–"

    show(
        "All-reduce of float32",
        ("", "ms", "x Gloo", "x Gloo on the GPU", "GB/s", "of copies", "sum"),
        [
            (
                _label(row),
                f"{_time(row)} {spread(row['seconds'])}",
                factor(row["x_gloo"]),
                factor(row["x_gloo_cuda"]) if "x_gloo_cuda" in row else "–",
                f"{row['bytes_per_s'] / 1e9:.2f}",
                share(row, "of_copies", "{:.0%}"),
                "right" if row["right"] else f"off by {row['error']:.2g}",
            )
            for row in rows
        ],
        [
            *failed,
            "ms: the slowest rank's, from a common start until the sum is on the device",
            "x Gloo: of the same ranks, in turns, with tensors at the same place",
            f"{CONTENDERS['gloo-4']}: {PIECES} pieces of the tensor, side by side",
            f"{CONTENDERS['weir-local']}: ranks reduce in the host's memory, without the switch",
            "GB/s: bytes of one rank's tensor; of copies: over the rate at which each of all ranks copies in "
            "both directions at once",
        ],
    )


def _show_exchanges(rows: Sequence[Row], failed: Sequence[str]) -> None:
    show(
        "Gradients exchanged by Weir's hook",
        ("", "ms", "MB up", "MB down", "choice ms", "sums ms", "sent"),
        [
            (
                _label(row),
                f"{_time(row)} {spread(row['seconds'])}",
                f"{row['bytes_up'] / 1e6:.3g}",
                f"{row['bytes_down'] / 1e6:.3g}",
                f"{1e3 * row['selection_seconds']:.0f}",
                f"{1e3 * row['reduce_seconds']:.0f}",
                f"{row['sent_elements'] / row['elements']:.1%}",
            )
            for row in rows
        ],
        [
            *failed,
            "choice, sums: of that, in choosing what is sent, and in reductions",
            "MB up, down: of a rank on the wire to the switch, headers included, in the last step",
        ],
    )


def _show_training(rows: Sequence[Row], failed: Sequence[str]) -> None:
    found = {row["way"]: row["median_s"] for row in rows}
    peer, floor = found.get("gloo"), found.get("alone")
    show(
        "Training of GPT-2",
        ("", "ms a step", "more than alone", "x Gloo", "tokens/s", "loss", "MB up"),
        [
            (
                _label(row),
                f"{_time(row)} {spread(row['seconds'])}",
                f"{1e3 * (row['median_s'] - floor):,.0f}" if floor else "–",
                factor(peer / row["median_s"]) if peer else "–",
                f"{row['tokens'] / row['median_s']:,.0f}",
                f"{row['losses'][-1]:.3f}",
                f"{row['bytes_up'] / 1e6:.3g}" if row["bytes_up"] else "–",
            )
            for row in rows
        ],
        [
            *failed,
            "more than alone: ms that a step takes more than with nothing summed",
            "loss: of the last step's batches before that step, mean of the ranks; without sums each rank "
            "trains alone",
            "tokens/s: of all ranks; MB up: of a rank and step on the wire to the switch",
        ],
    )
