# SPDX-License-Identifier: Apache-2.0
"""``weir bench training``: time to equal accuracy of Weir's methods and of its peers, on the same bad links.

All train the same model from the same seed over the same links, one after the other: racks and spines in
network namespaces, links with a rate, random loss and incast. Soft switches forward, queue and lose Weir's
packets; the peers have the kernel's own bridges, whose links and queues do the same to theirs
(``bridged_lab``): TCP's packets, too, pass those of the bursts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from weir.bench import training_virtual
from weir.bench.dense_curve import dense_curve
from weir.bench.line import least_seconds
from weir.bench.table import show
from weir.bench.training_plot import draw
from weir.bench.training_virtual import Reduced
from weir.bench.training_ways import PEERS, TraceKind, Way, WayResult, train
from weir.methods import find_method
from weir.netns.cluster import bridged_network, network_cluster
from weir.netns.namespace import NamespaceError, gain_root
from weir.report.words import byte_count, duration, factor
from weir.train.config import TrainConfig
from weir.train.models import parameter_count
from weir.train.words import NOT_KNOWN, links_line, method_words

_USE: Final = ("line", "worker", "switches", "machine")

console = Console(stderr=True)


def run(
    configs: Sequence[TrainConfig],
    peers: Sequence[TraceKind],
    budget: float,
    peer_minutes: float,
    target: float | None,
    plot: Path,
    *,
    virtual: bool,
    real: bool,
) -> None:
    """Measure, print and draw. virtual: a step's all-reduce in virtual time; real: the training itself.

    The latter only where network namespaces are to be had, and said if not. configs: one for each of Weir's
    methods, equal otherwise.
    budget: of another run of the first that can have one; 0: no such run. peer_minutes: of training, then a
    peer is cut short. target: the accuracy to reach; None: the highest that all complete runs reach.
    """
    reason = gain_root() if real else None
    if virtual:
        _virtual(configs[0], budget)
    if not real:
        return
    if reason is not None:
        console.print(f"not trained: {reason}")
        return
    found = ways(configs, peers, budget, 60 * peer_minutes)
    outcomes = list(trained(list(reversed(found))))[::-1]
    report(outcomes, configs[0], target, plot)


def trained(these: Sequence[Way]) -> Iterator[WayResult]:
    """Train one way after the other; a peer whose network is not to be had is left out, and said."""
    for way in these:
        console.print(f"{way.name} ...")
        make = network_cluster if way.kind == "weir" else bridged_network
        try:
            with make(way.config.members, network=way.config.network) as network:
                yield train(way, network)
        except NamespaceError as error:
            if way.kind == "weir":
                raise
            console.print(f"{way.name} not trained: {error}")  # the rest was, and is shown


def ways(
    configs: Sequence[TrainConfig],
    peers: Sequence[TraceKind],
    budget: float = 0.0,
    limit_s: float = float("inf"),
) -> list[Way]:
    """Return all ways to train, peers first."""
    found = [Way(PEERS[peer], peer, configs[0], limit_s) for peer in peers]
    found += [Way(", ".join([called(config), *_words(config)]), "weir", config) for config in configs]
    able = [config for config in configs if find_method(config.method).kind == "sparsifier"]
    if budget and able:
        lossy = able[0].model_copy(update={"loss_budget": budget})
        found.append(Way(f"{called(lossy)}, {lossy.method}, budget {budget:g}", "weir", lossy))
    return found


def called(config: TrainConfig) -> str:
    """Return what Weir is called in the mode of a training."""
    return "Weir's PS" if config.mode == "ps" else "Weir"


def _words(config: TrainConfig) -> list[str]:
    """Return a training's method, and what else tells it from others with the same links."""
    return [
        config.method,
        *([config.consistency] if config.consistency != "sync" else []),
        *([f"filter {config.push_filter}"] if config.push_filter != "0" else []),
        *([] if config.overlap else ["no overlap"]),
    ]


def report(outcomes: Sequence[WayResult], config: TrainConfig, target: float | None, plot: Path) -> None:
    """Print and draw what came out."""
    if target is None:
        target = min(max(e.accuracy for e in o.record.evaluations) for o in outcomes if o.complete)
    steps, source = dense_steps(target, outcomes, lambda: dense_curve(config))
    reached = {o.name: time_to(target, o, steps) for o in outcomes}
    _print(outcomes, reached, target, source, config)
    draw(plot, outcomes, reached, target, config)
    Console().print(f"drawn: {plot}", style="dim", highlight=False)


def time_to(target: float, outcome: WayResult, dense_steps: int | None) -> float | None:
    """Return seconds of training to an accuracy of ``target``; None where that is not reached, or not known.

    dense_steps: how many steps dense training takes to it. A dense run that was cut short before takes as
    many, at its own time per step.
    """
    if (seconds := outcome.time_to(target)) is not None:
        return seconds
    if outcome.complete or not outcome.way.dense or dense_steps is None:
        return None
    return dense_steps * outcome.step_s


def dense_steps(
    target: float, outcomes: Sequence[WayResult], curve: Callable[[], Iterator[tuple[int, float]]]
) -> tuple[int | None, str]:
    """Return steps that dense training takes to an accuracy, and how that is known ("" where nobody needs
    it).

    From a dense run that came so far, whose sums are every dense run's but for rounding; without one, from
    ``curve``: steps and accuracy of dense training without a network.
    """
    needed = [o for o in outcomes if o.way.dense and not o.complete and o.time_to(target) is None]
    if not needed:
        return None, ""
    for outcome in outcomes:
        if outcome.way.dense and (steps := outcome.steps_to(target)) is not None:
            return steps, f"as {outcome.name} needed"
    if any(o.way.dense and o.complete for o in outcomes):
        return None, "that no dense run reached"
    console.print("dense training without a network, to count its steps ...")
    steps = next((steps for steps, accuracy in curve() if accuracy >= target), None)
    if steps is None:
        return None, "that dense training does not reach"
    return steps, f"as dense training needs: {steps}, counted in one process without a network"


def _virtual(config: TrainConfig, budget: float) -> None:
    """Measure what one step waits for, free of this machine's load."""
    from weir.train.task import make_task

    parameters = parameter_count(make_task(config).model)
    spec, workers = config.network, config.workers
    ways: list[tuple[str, Callable[[], Reduced]]] = [
        ("ring over TCP, CUBIC", lambda: training_virtual.ring(spec, workers, parameters, "cubic")),
        ("ring over TCP, BBR", lambda: training_virtual.ring(spec, workers, parameters, "bbr")),
        ("Weir, lossless", lambda: training_virtual.weir(spec, workers, parameters, 0.0)),
        (f"Weir, budget {budget:g}", lambda: training_virtual.weir(spec, workers, parameters, budget)),
        ("Weir, 16 bits", lambda: training_virtual.weir(spec, workers, parameters, 0.0, 16)),
        ("Weir, 8 bits", lambda: training_virtual.weir(spec, workers, parameters, 0.0, 8)),
    ]
    found = {}
    for name, reduce in ways:
        console.print(f"{name}, in virtual time ...")
        found[name] = reduce()
    rings, lossless = list(found.values())[:2], found["Weir, lossless"]
    best = min(ring.seconds for ring in rings)
    show(
        f"All-reduce of {config.model}'s gradient in virtual time, {workers} workers, {links_line(config)}",
        ("", "time", "line", "missing", "x best ring", "x lossless"),
        [
            (
                name,
                duration(one.seconds),
                f"{least_seconds(parameters, workers, spec.rate_bps, ring=one in rings) / one.seconds:.0%}"
                if spec.rate_bps
                else NOT_KNOWN,
                "–" if one in rings else f"{one.missing:.2%}",
                factor(best / one.seconds),
                factor(lossless.seconds / one.seconds),
            )
            for name, one in found.items()
        ],
        [
            "dense gradient; simulated links and TCP, everything of Weir's real: no figure depends on this "
            "machine's load",
            "line: the least time that the line's payload rate allows, over the time; payload rate: the rate "
            "without the headers of full packets, from Ethernet up",
        ],
    )


def _print(
    outcomes: Sequence[WayResult],
    reached: Mapping[str, float | None],
    target: float,
    source: str,
    config: TrainConfig,
) -> None:
    first = next(o for o in outcomes if o.way.kind == "weir")
    beside = [o.name for o in outcomes if o.way.kind != "weir"] + [first.name]
    rows, notes = [], []
    for outcome in outcomes:
        seconds, record, done = reached[outcome.name], outcome.record, outcome.record.delivery
        estimated = "" if outcome.time_to(target) is not None else "~"
        rows.append(
            (
                outcome.name,
                duration(outcome.step_s),
                "–" if record.accuracy is None else f"{record.accuracy:.1%}",
                f"{done.missing_share:.2%}" if outcome.way.kind == "weir" else "–",
                "not reached" if seconds is None else estimated + duration(seconds),
                *(_ratio(reached[other], seconds) for other in beside),
                NOT_KNOWN if outcome.of_line is None else f"{outcome.of_line:.0%}",
                *_processor(outcome),
            )
        )
        notes.append(_counted(outcome))
    notes.append(
        f"time to {target:.1%}: training time at the first evaluation with that accuracy; evaluated "
        + (f"every {config.evaluate_every} steps" if config.evaluate_every else "after each epoch")
        + "; step: median, of the slowest worker"
    )
    notes += _savings(outcomes, reached)
    notes.append(
        "line: share of its link's rate that a worker's packets take up in the steps, headers included, "
        "forward and backward pass, too; worker, switches, machine: processor seconds for each GB of a "
        "worker's gradients, the worker's with forward and backward pass, the machine's with all that ran"
    )
    if any(o.way.kind != "weir" for o in outcomes):
        notes.append(
            "peers: on the kernel's bridges, over links with the same rate, losses and bursts, spread over "
            "the spines without collision; their packets pass the bursts', as Weir's do"
        )
    if source:
        notes.append(f"~: cut short; its own time per step times the number of steps {source}")
    if any(o.way.kind == "ps" for o in outcomes):
        notes.append(
            "PS: one dense parameter server over TCP, "
            + (
                "on a host of its own"
                if config.mode == "ps"
                else "on rank 0's host, which has that rank's gradient for free"
            )
        )
    show(
        f"{config.model}, {config.workers} workers, {links_line(config)}",
        ("", "step", "accuracy", "missing", f"to {target:.1%}", *(f"x {name}" for name in beside), *_USE),
        rows,
        notes,
    )


def _processor(outcome: WayResult) -> tuple[str, ...]:
    """Return the cells of processor time for each gigabyte of gradients."""
    used = outcome.record.processor_per_gigabyte()
    if used is None:
        return (NOT_KNOWN,) * 3
    return tuple(f"{each:.1f}" if each else NOT_KNOWN for each in (used.own, used.others, used.machine))


def _ratio(theirs: float | None, ours: float | None) -> str:
    return "–" if theirs is None or ours is None else factor(theirs / ours)


def _savings(outcomes: Sequence[WayResult], reached: Mapping[str, float | None]) -> list[str]:
    """Return how much less time each of Weir's ways takes than each peer."""
    notes = []
    for peer in (o for o in outcomes if o.way.kind != "weir"):
        theirs = reached[peer.name]
        parts = [
            f"{o.name} {1 - ours / theirs:.2%}"
            for o in outcomes
            if o.way.kind == "weir" and (ours := reached[o.name]) is not None and theirs is not None
        ]
        if parts:
            notes.append(f"less time than {peer.name}: {'; '.join(parts)}")
    return notes


def _counted(outcome: WayResult) -> str:
    """Return what workers and switches counted."""
    record, counts, done = outcome.record, outcome.counts, outcome.record.delivery
    switches = counts and (
        f", {done.counters.releases:,} releases; switches trimmed {counts.trims:,} packets, marked "
        f"{counts.marks:,}, found no room for {counts.congestion_drops:,}, lost {counts.lost:,} on purpose"
    )
    mean, steps = record.mean_traffic, max(1, len(record.steps))
    method = f" ({method_words(outcome.way.config)})" if outcome.way.kind == "weir" else ""
    return (
        f"{outcome.name}{method}: {len(record.steps)} of {record.total_steps} steps, "
        f"{byte_count(mean.bytes_up / steps)} up per worker and step, "
        f"{mean.retransmissions:,} retransmissions{switches or ''}"
    )
