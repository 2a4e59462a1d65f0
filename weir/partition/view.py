# SPDX-License-Identifier: Apache-2.0
"""Plans as tables and as a picture."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.host_agent.placement.plan import BOTH_RANDOM, Plan
from weir.host_agent.placement.racks import hops, rack_of
from weir.host_agent.placement.samples import Samples
from weir.host_agent.placement.traffic import VALUE_BYTES, users
from weir.report.words import byte_count

EXPLANATION: Final = (
    dedent(
        """
    Every machine has a worker and a server. A worker needs the parameters of all features that its samples
    have, and pulls each once an iteration; for each it pushes one gradient of the same size. Parameters that
    lie with the worker itself do not travel. So what travels is, for every parameter, twice 4 bytes for each
    machine that uses it but the one that has it: little, when samples that have features in common are
    together. No machine has more than its share of the samples or of the parameters and the slack. The
    bottleneck is what the busiest machine sends and receives. With --hashing plain a parameter is needed
    wherever any of its features is; with local, features share one when the same machines need them anyway;
    with clustered, those of them that say the same of the label, so that a model loses little. With --racks,
    machines are in racks in order; what passes a spine crosses four links instead of two.
    """
    )
    .replace("\n", " ")
    .strip()
)


def comparison(plans: Mapping[str, Plan]) -> RenderableType:
    """Return a table of several methods' plans."""
    table = Table(
        "method",
        *("total", "", "busiest", "samples", "parameters", "seconds"),
        caption="busiest: bytes of the busiest machine; samples, parameters: most of any; seconds of "
        "refined: beside those of what it begins with",
        caption_justify="left",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    base = plans[BOTH_RANDOM].traffic.total
    for name, plan in plans.items():
        total = plan.traffic.total
        table.add_row(
            name,
            byte_count(total),
            f"{total / base - 1:+.1%}" if base else "",
            byte_count(plan.traffic.bottleneck),
            f"{_most(plan.placement.of_sample, plan):,}",
            f"{_most(plan.placement.of_parameter, plan):,}",
            f"{plan.seconds:.1f}",
        )
    return table


def summary(samples: Samples, plan: Plan, method: str) -> RenderableType:
    """Return what a plan comes to, and a row for each machine."""
    machines = plan.placement.machines
    shared = "" if plan.buckets is None else f" in {plan.samples.width:,} buckets"
    what = f"{len(samples):,} samples with {samples.width:,} features{shared}"
    head = Text(f"{what} on {machines} machines, by {method}")
    table = Table("machine", "samples", "parameters", "sends", "receives")
    for column in table.columns[1:]:
        column.justify = "right"
    links = plan.traffic.links
    for machine in range(machines):
        table.add_row(
            str(machine),
            f"{int((plan.placement.of_sample == machine).sum()):,}",
            f"{int((plan.placement.of_parameter == machine).sum()):,}",
            byte_count(int(links[machine].sum())),
            byte_count(int(links[:, machine].sum())),
        )
    total, most = byte_count(plan.traffic.total), byte_count(plan.traffic.bottleneck)
    foot = Text(f"an iteration moves {total}; the busiest machine, {most}; found in {plan.seconds:.1f} s")
    if plan.racks > 1:
        rack = rack_of(machines, plan.racks)
        between = int(links[rack[:, None] != rack].sum())
        share = between / max(plan.traffic.total, 1)
        foot.append(
            f"\n{byte_count(between)} of it ({share:.0%}) between {plan.racks} racks; "
            f"{byte_count(hops(links, plan.racks))} on all links of leaves and spines together"
        )
    return Group(head, table, foot)


def as_figures(plan: Plan) -> dict[str, Any]:
    """Return a plan's figures for ``--json``.

    Args:
        plan: The plan.

    Returns:
        Bytes of an iteration, seconds of partitioning, and what each machine has and moves.
    """
    links, placement = plan.traffic.links, plan.placement
    return {
        "bytes": plan.traffic.total,
        "bytes_of_the_busiest_machine": plan.traffic.bottleneck,
        "seconds": plan.seconds,
        "machines": [
            {
                "samples": int((placement.of_sample == machine).sum()),
                "parameters": int((placement.of_parameter == machine).sum()),
                "bytes_sent": int(links[machine].sum()),
                "bytes_received": int(links[:, machine].sum()),
            }
            for machine in range(placement.machines)
        ],
    }


def explanation(samples: Samples, plan: Plan) -> RenderableType:
    """Return what the figures mean, and how many machines this plan's parameters are used by."""
    machines, of_parameter = plan.placement.machines, plan.placement.of_parameter
    used = users(plan.samples, plan.placement.of_sample, machines)
    degree = used.sum(axis=0)
    remote = degree - used[of_parameter, np.arange(of_parameter.size)]
    apart = int(((remote == degree) & (degree > 0)).sum())
    table = Table("used by", "parameters", "bytes of an iteration", "")
    for column in table.columns[1:]:
        column.justify = "right"
    lower = 1
    while lower <= machines:
        upper = min(2 * lower - 1, machines) if lower > 1 else 1
        some = (degree >= lower) & (degree <= upper)
        cost = 2 * VALUE_BYTES * int(remote[some].sum())
        who = f"{lower}" if lower == upper else f"{lower} to {upper}"
        share = f"{cost / plan.traffic.total:.0%}" if plan.traffic.total else ""
        table.add_row(
            f"{who} machine{'s' if upper > 1 else ''}", f"{int(some.sum()):,}", byte_count(cost), share
        )
        lower = upper + 1
    entries = np.bincount(plan.placement.of_sample, weights=np.diff(samples.starts), minlength=machines)
    foot = Text(
        f"A sample has {samples.features.size / max(len(samples), 1):.0f} features on average; a machine's "
        f"samples have {int(entries.min()):,} to {int(entries.max()):,} together. {apart:,} parameters found "
        "no room with any of their users."
    )
    return Group(Text(EXPLANATION), table, foot)


def draw(plan: Plan, method: str, file: Path) -> None:
    """Write a picture of the traffic from machine to machine, and of what each has."""
    from matplotlib.figure import Figure

    machines = plan.placement.machines
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes, shares = figure.subplots(1, 2)
    image = axes.imshow(plan.traffic.links / 1e3, cmap="viridis")
    total, most = byte_count(plan.traffic.total), byte_count(plan.traffic.bottleneck)
    axes.set(
        title=f"{method}: {total} an iteration, {most} of the busiest machine",
        xlabel="to machine",
        ylabel="from machine",
    )
    ticks = np.arange(machines)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    for at, what, places in (
        (-0.2, "samples", plan.placement.of_sample),
        (0.2, "parameters", plan.placement.of_parameter),
    ):
        parts = np.bincount(places, minlength=machines) / max(places.size, 1)
        shares.bar(ticks + at, 100 * parts, 0.4, label=what)
    shares.axhline(100 / machines, color="gray", linestyle=":", label="equal shares")
    shares.set(title="what each machine has", xlabel="machine", ylabel="% of all", xticks=ticks)
    shares.set_ylim(top=1.3 * shares.get_ylim()[1])  # room for the legend
    shares.legend(frameon=False, ncols=3, loc="upper center")
    if plan.racks > 1:
        for edge in np.flatnonzero(np.diff(rack_of(plan.placement.machines, plan.racks))) + 0.5:
            axes.axhline(edge, color="white", linewidth=1)
            axes.axvline(edge, color="white", linewidth=1)
    figure.colorbar(image, ax=axes, label="kB an iteration", shrink=0.8)
    figure.savefig(file, dpi=120)


def _most(places: np.ndarray, plan: Plan) -> int:
    return int(np.bincount(places, minlength=plan.placement.machines).max())
