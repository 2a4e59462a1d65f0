# SPDX-License-Identifier: Apache-2.0
"""The end of a run: summary.json, and the table that sets Weir beside the reference."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.report.words import byte_count, duration, percent, ratio, times
from weir.train.config import TrainConfig
from weir.train.record import RunRecord, Status, delivery_json
from weir.train.wirebytes import dense_bytes
from weir.train.words import NOT_KNOWN, idle_mechanisms, network_line, network_rows, training_line

SCHEMA: Final = 1


def overall_status(records: list[RunRecord]) -> Status:
    """Return the worst of the runs': failed, then interrupted, then complete; no run at all was
    interrupted.
    """
    found = {record.status for record in records}
    if "failed" in found:
        return "failed"
    return "interrupted" if not records or found != {"complete"} else "complete"


def summarize(
    config: TrainConfig, records: list[RunRecord], switch_events: Mapping[str, int]
) -> dict[str, Any]:
    """Return what summary.json holds. ``switch_events``: packets the switch counted, by event."""
    return {
        "schema": SCHEMA,
        "status": overall_status(records),
        "problem": next((record.problem for record in records if record.problem), None),
        "config": config.model_dump(mode="json"),
        "runs": {record.run: _run(record) for record in records},
        "idle": [words for record in records for words in idle_mechanisms(config, record)],
        "switch_events": dict(switch_events),
    }


def _run(record: RunRecord) -> dict[str, Any]:
    parameters = record.ready.parameters if record.ready else None
    return {
        "status": record.status,
        "steps": len(record.steps),
        "steps_planned": record.total_steps,
        "resumed_after_step": record.before or None,
        "parameters": parameters,
        "accuracy": record.accuracy,
        "epochs": [
            {
                "epoch": e.epoch,
                "step": e.step,
                "loss": e.loss,
                "accuracy": e.accuracy,
                "perplexity": math.exp(min(e.loss, 700.0)),
            }
            for e in record.evaluations
        ],
        "training_s": record.training_s,
        "step_s_median": record.step_s,
        "communication_s": record.communication_s,
        "communication_share": record.communication_s / record.training_s if record.training_s else None,
        "density": record.density,
        "build_up": record.build_up,
        "imbalance": record.imbalance,
        "selection_s": record.selection_s,
        "reductions_per_step": _reduces(record) if record.delivery.reduces else None,
        "migrations": {"units": record.delivery.migrated, "bytes": record.delivery.migrated_bytes},
        "blocks_sent": sum(step.blocks_sent for step in record.steps),
        "blocks_skipped": sum(step.blocks_skipped for step in record.steps),
        "per_worker": asdict(record.mean_traffic),
        "workers": {str(rank): asdict(traffic) for rank, traffic in record.totals.items()},
        "delivery": delivery_json(record.delivery),
        "network": record.counts.as_json() if record.counts else None,
        "traffic_source": record.ready.traffic_source if record.ready else None,
        "dense_bytes_per_step": dense_bytes(parameters) if parameters else None,
        "processor_s_per_gigabyte": _processor(record),
        "replicas": {
            "identical_after_every_step": record.identical_in_steps or None,
            "identical_at_end": record.identical_at_end or None,
            "checksum": record.steps[-1].checksum if record.steps else None,
        },
    }


def _processor(record: RunRecord) -> dict[str, float] | None:
    """Return processor time for each gigabyte of a worker's gradients, by whose it is."""
    used = record.processor_per_gigabyte()
    return None if used is None else {"worker": used.own, "switches": used.others, "machine": used.machine}


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _reduces(record: RunRecord) -> float:
    """Return how many reductions a worker waits for in a step; NaN where the transport has none."""
    done = record.delivery.reduces
    return done / len(record.totals) / len(record.steps) if done else math.nan


def _perplexity(record: RunRecord) -> float:
    return math.exp(min(record.evaluations[-1].loss, 700.0)) if record.evaluations else math.nan


_ROWS: Final[tuple[tuple[str, Callable[[RunRecord], float], Callable[[float], str], bool], ...]] = (
    ("steps", lambda r: len(r.steps), lambda v: f"{v:.0f}", False),
    ("accuracy, held out", lambda r: _known(r.accuracy), percent, False),
    ("perplexity, held out", _perplexity, lambda v: f"{v:.1f}", False),
    ("bytes up per worker", lambda r: r.mean_traffic.bytes_up, byte_count, True),
    ("bytes down per worker", lambda r: r.mean_traffic.bytes_down, byte_count, True),
    ("packets up per worker", lambda r: r.mean_traffic.packets_up, lambda v: f"{v:,.0f}", True),
    ("packets down per worker", lambda r: r.mean_traffic.packets_down, lambda v: f"{v:,.0f}", True),
    ("communication time", lambda r: r.communication_s, duration, True),
    ("training time", lambda r: r.training_s, duration, True),
    ("median step", lambda r: r.step_s, duration, True),
    ("values sent, not zero", lambda r: r.density, percent, False),
    ("sent by any worker : by one", lambda r: _known(r.build_up), times, False),
    ("selection time per step", lambda r: _known(r.selection_s), duration, False),
    ("reductions per step", _reduces, "{:.1f}".format, False),
    ("units that migrated", lambda r: r.delivery.migrated, lambda v: f"{v:,.0f}", False),
    ("bytes that they took along", lambda r: r.delivery.migrated_bytes, byte_count, False),
    ("retransmissions, all workers", lambda r: r.mean_traffic.retransmissions, lambda v: f"{v:,.0f}", False),
)


_MIGRATIONS: Final = ("units that migrated", "bytes that they took along")

_PROCESSOR: Final = {
    "worker": "processor s a GB, worker",
    "switches": "processor s a GB, switches",
    "machine": "processor s a GB, machine",
}


def use_rows(config: TrainConfig, record: RunRecord) -> list[tuple[str, str]]:
    """Return label and value of what the run needed of its links and of the processors."""
    rows = []
    if (rate := config.network.rate_bps) is not None:
        traffic, known = record.mean_traffic, config.same_links or record.run == "weir"
        for way, count in (("up", traffic.bytes_up), ("down", traffic.bytes_down)):
            share = (
                percent(8 * count / (rate * record.training_s)) if known and record.training_s else NOT_KNOWN
            )
            rows.append((f"line in use, {way}", share))
    used = _processor(record) or {}
    return rows + [
        (label, f"{used[whose]:.1f}" if used.get(whose) else NOT_KNOWN) for whose, label in _PROCESSOR.items()
    ]


_LINK_TIMES: Final = ("communication time", "training time", "median step")


def summary_view(config: TrainConfig, records: list[RunRecord], status: Status) -> RenderableType:
    """Return the table at the end, with what its numbers mean below; a sentence when there was no step.

    status: of all together; a cluster that did not start has failed without any record.
    """
    if not any(record.steps for record in records):
        return Text(f"{_title(config, status)}: no step was trained")
    table = Table()
    table.add_column("")
    for record in records:
        table.add_column(_column(record), justify="right")
    both = len(records) == 2 and all(record.status == "complete" for record in records)
    if both:
        table.add_column("Weir : Gloo", justify="right")
    for name, value, words, comparable in _ROWS:
        if (name.startswith("perplexity") and config.model != "lm") or (
            name in _MIGRATIONS and config.placement is None
        ):
            continue
        values = [value(record) for record in records]
        cells = ["–" if math.isnan(v) else words(v) for v in values]
        fair = comparable and (config.same_links or name not in _LINK_TIMES)
        table.add_row(name, *cells, *([ratio(*values) if fair else ""] if both else []))
    for row in zip(*(use_rows(config, record) for record in records), strict=True):
        table.add_row(row[0][0], *(value for _, value in row), *([""] if both else []))
    for row in zip(*(network_rows(config, record) for record in records), strict=True):
        table.add_row(row[0][0], *(value for _, value in row), *([""] if both else []))
    title = Text(_title(config, status), style="italic")
    verdict = [Text(_verdict(config, *records), style="bold")] if both else []
    return Group(title, table, *verdict, *_notes(config, records))


def _verdict(config: TrainConfig, weir: RunRecord, gloo: RunRecord) -> str:
    """Return the comparison in a sentence: accuracy, bytes, and time where both had the same links."""
    if not (weir.steps and gloo.steps and gloo.mean_traffic.bytes_up):
        return ""
    share = weir.mean_traffic.bytes_up / gloo.mean_traffic.bytes_up
    parts = [
        f"accuracy {percent(_known(weir.accuracy))} (Gloo {percent(_known(gloo.accuracy))})",
        f"{percent(share)} of Gloo's bytes up",
    ]
    if config.same_links and weir.step_s:
        parts.append(f"Gloo's step takes {gloo.step_s / weir.step_s:.1f} times as long")
    return f"Weir: {', '.join(parts)}"


def _title(config: TrainConfig, status: Status) -> str:
    ended = "" if status == "complete" else f" ({status})"
    return "\n".join(filter(None, (f"{training_line(config)}{ended}", network_line(config))))


def _column(record: RunRecord) -> str:
    name = "Weir" if record.run == "weir" else "Gloo (reference)"
    return name if record.status == "complete" else f"{name}\n{record.status}"


def _notes(config: TrainConfig, records: list[RunRecord]) -> list[Text]:
    sources = [f"{r.run}: bytes of all training steps, {r.ready.traffic_source}" for r in records if r.ready]
    sources += [
        f"{r.run}: went on after step {r.before} of {config.resume}; figures are of the steps since"
        for r in records
        if r.before
    ]
    if config.workers > 1:
        for when, runs in (
            ("after every step", [r.run for r in records if r.identical_in_steps]),
            (
                "after the last step",
                [r.run for r in records if r.identical_at_end and not r.identical_in_steps],
            ),
        ):
            if runs:
                sources.append(f"parameters bit-identical on all workers {when} ({', '.join(runs)})")
    if config.network.rate_bps is not None:
        sources.append(
            "line in use: bytes with all headers over what the rate allows in the time of the steps, forward "
            "and backward pass included; for full packets, the share of the line's payload rate, too"
        )
    if any(record.processor_per_gigabyte() is not None for record in records):
        sources.append(
            "processor s a GB: processor seconds for each GB of a worker's gradients; a worker's include "
            "forward and backward pass; the machine's, evaluations, other load and what its kernel does for "
            "bridge and links in softirqs"
        )
    sources += [f"did nothing: {words}" for record in records for words in idle_mechanisms(config, record)]
    if config.lossy:
        sources.append(
            "missing: of the values sent; the bound is what the budgets of all layers and magnitudes allow "
            "together, back layers and large values less than front layers and small ones"
        )
    if any(record.run == "gloo" for record in records):
        if config.network.rate_bps is None and config.same_links:
            sources.append(
                "no link was limited: both runs moved their bytes through this machine's memory, where fewer "
                "bytes save little time. --links 100mbit --hosts auto limits the links of both"
            )
        if not config.same_links:
            sources.append(
                "gloo runs over loopback, not over these links: compare its accuracy, not its time"
            )
        elif config.hosts == "namespaces":
            sources.append(
                "both run over links of the same rate, losses and background traffic; the soft switch "
                "forwards Weir's packets, the kernel's bridge Gloo's, which has its segmentation offloads"
            )
    return [Text(line, style="dim") for line in sources]
