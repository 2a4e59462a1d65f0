# SPDX-License-Identifier: Apache-2.0
"""Plans as tables and as a picture."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.host_agent.placement.plan import BOTH_RANDOM, Plan
from weir.host_agent.placement.racks import hops, rack_of
from weir.host_agent.placement.samples import Samples
from weir.train.words import byte_count

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
    table = Table("method", "total", "", "bottleneck", "most samples", "most parameters", "seconds")
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


def draw(plan: Plan, file: Path) -> None:
    """Write a picture of the traffic from machine to machine."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(plan.traffic.links / 1e3, cmap="viridis")
    axes.set(
        title=f"{byte_count(plan.traffic.total)} an iteration", xlabel="to machine", ylabel="from machine"
    )
    ticks = np.arange(plan.placement.machines)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    if plan.racks > 1:
        for edge in np.flatnonzero(np.diff(rack_of(plan.placement.machines, plan.racks))) + 0.5:
            axes.axhline(edge, color="white", linewidth=1)
            axes.axvline(edge, color="white", linewidth=1)
    figure.colorbar(image, label="kB an iteration")
    figure.savefig(file, dpi=120)


def _most(places: np.ndarray, plan: Plan) -> int:
    return int(np.bincount(places, minlength=plan.placement.machines).max())
