# SPDX-License-Identifier: Apache-2.0
"""Time to an equal metric (accuracy, or loss) of Weir's methods and of its peers, on the same bad links.

All train the same model from the same seed over the same links, one after the other: racks and spines in
network namespaces, links with a rate, random loss and incast. Soft switches forward, queue and lose Weir's
packets; the peers have the kernel's own bridges, whose links and queues do the same to theirs
(``bridged_lab``): TCP's packets, too, pass those of the bursts. How long a step's all-reduce takes where no
processor is short: ``weir.bench.simulated.step``.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from softp4.runtime.queueing import parse_rate
from weir.bench.case import ParameterError, Run, parameter
from weir.bench.results import Column, Line, Panel, Plot, Row, Table
from weir.bench.training.dense_curve import dense_curve
from weir.bench.training.ways import HOOKS, PEERS, Kind, Way, WayResult, settings_of, train
from weir.methods import find_method
from weir.netns.cluster import BridgedNetwork, NetworkCluster, bridged_network, network_cluster
from weir.netns.namespace import NamespaceError, gain_root
from weir.network import NetworkSpec
from weir.report.words import byte_count, duration
from weir.train.config import PRESETS, TrainConfig, make_config
from weir.train.words import links_line, mechanisms, method_words

_USE: Final = ("worker", "switches", "machine")


@dataclass(frozen=True)
class Parameters:
    """The training, its links, and who takes part."""

    model: str = parameter("resnet18", "that is trained", choices=PRESETS)
    workers: int = parameter(4, "workers", least=1, most=32)
    epochs: int = parameter(3, "passes over the data", least=1)
    max_steps: int | None = parameter(None, "of each epoch at most", least=1)
    mode: str = parameter("all-reduce", "of Weir's trainings", choices=("all-reduce", "ps"))
    servers: int = parameter(1, "with mode ps", least=1)
    consistency: str = parameter("sync", "with mode ps: sync, ssp:S, async")
    methods: tuple[str, ...] = parameter(("dense",), "Weir's methods: METHOD, or METHOD:SETTING=VALUE:...")
    peers: tuple[str, ...] = parameter(
        ("gloo",),
        f"likewise: {', '.join(PEERS)}; gloo: all-reduce, dense or by torch's hooks; ps: a dense parameter "
        "server",
    )
    density: float = parameter(0.05, "of methods that send a share", above=0, most=1)
    topology: str = parameter("leaf-spine-2x2", "single, or leaf-spine-RxS: racks and spines")
    links: str = parameter("100mbit", "rate of all links")
    uplinks: str | None = parameter(None, "rate of what workers send; none: that of links")
    buckets: bool = parameter(
        False, "shape Weir's links, too, by the kernel's token buckets, not by the queues of soft switches"
    )
    loss: float = parameter(0.01, "share of packets that every link loses", least=0, most=0.5)
    background: str = parameter("incast", "bursts of others", choices=("incast", "none"))
    budget: float = parameter(
        0.1, "loss budget of one more run, of the first method that can have one; 0: none", least=0, most=1
    )
    background_load: float = parameter(0.5, "share of a victim's link", above=0, most=1)
    background_dscp: int = parameter(
        0,
        "class of the bursts; of one of Weir's, they and peers' packets wait in one queue, too",
        least=0,
        most=63,
    )
    peer_timeout: float | None = parameter(
        None, "least time-out of peers' TCP; none: Linux's, 200", unit="ms", above=0
    )
    peer_minutes: float = parameter(10.0, "of training, then a peer is cut short", above=0)
    evaluate_every: int | None = parameter(None, "steps between evaluations; none: an epoch", least=1)
    target: float | None = parameter(
        None, "accuracy or loss to reach; none: the best that all complete runs reach", least=0
    )

    def __post_init__(self) -> None:
        for way in (*self.methods, *self.peers):
            try:
                settings_of(way)
            except ValueError as error:
                raise ParameterError(str(error)) from None
        try:
            uplink_rate(self.uplinks)
        except ValueError as error:
            raise ParameterError(f"uplinks: {error}") from None
        if self.buckets and (self.uplinks or self.loss or self.background != "none"):
            raise ParameterError("buckets: with loss=0, background=none and no uplinks: queues have these")
        if unknown := [peer for peer in self.peers if settings_of(peer)["method"] not in PEERS]:
            raise ParameterError(f"peers: {', '.join(unknown)}: there are {', '.join(PEERS)}")


def run(parameters: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Train every way, where network namespaces are available."""
    given = vars(parameters) | {"plugin": run.plugins, "hosts": "namespaces"}
    own = {name: value for name, value in given.items() if name not in _NOT_CONFIG}
    if (reason := gain_root()) is not None:
        raise NamespaceError(f"not trained: {reason}")
    tables = []
    for seed in run.seeds:
        configs = [make_config(**own | settings_of(method), seed=seed) for method in parameters.methods]
        found = ways(configs, parameters.peers, parameters.budget, 60 * parameters.peer_minutes)
        up = uplink_rate(parameters.uplinks)
        buckets = parameters.links if parameters.buckets else None
        outcomes = list(trained(list(reversed(found)), run.say, parameters.peer_timeout, up, buckets))[::-1]
        for made in report(outcomes, configs[0], parameters.target, parameters.uplinks):
            if isinstance(made, Table):
                tables.append(made)
            if len(run.seeds) == 1 or isinstance(made, Table):
                yield made
    if len(tables) > 1:
        yield of_all_seeds(tables)


def of_all_seeds(tables: Sequence[Table]) -> Table:
    """Return one table of several seeds' tables, each seed with a target of its own."""
    first = tables[0]
    columns = (Column("to the target", first.columns[0].show), *first.columns[1:])

    def row(number: int) -> Row:
        rows = [table.rows[number] for table in tables]
        lists = {
            column.name: [one.values[own.columns[place].name] for one, own in zip(rows, tables, strict=True)]
            for place, column in enumerate(columns)
        }
        known = {name: None if None in values else values for name, values in lists.items()}
        return Row(rows[0].contender, cast(dict[str, Any], known))

    title = f"{first.title}, {len(tables)} seeds, each with its own target"
    return Table(title, columns, tuple(row(number) for number in range(len(first.rows))), peers=first.peers)


_NOT_CONFIG: Final = {
    "methods", "peers", "budget", "peer_minutes", "peer_timeout", "target", "uplinks", "buckets",
}  # fmt: skip


def uplink_rate(words: str | None) -> int | None:
    """Return a rate in bit/s; None: that of links. Raises ValueError: it is no rate."""
    return parse_rate(words) if words else None


def trained(
    these: Sequence[Way],
    say: Callable[[str], None],
    peer_timeout: float | None = None,
    up_bps: int | None = None,
    buckets: str | None = None,
) -> Iterator[WayResult]:
    """Train one way after the other; a peer whose network is not available is left out, and said.

    peer_timeout: least time-out of peers' TCP, in milliseconds; None: Linux's. up_bps: of what workers send;
    None: as of links. buckets: rate of the kernel's token buckets on Weir's links; None: the switches' queues
    shape them.
    """
    for way in these:
        say(f"{way.name} ...")
        links = replace(way.config.network, up_bps=up_bps)
        try:
            with _network(way, links, buckets) as network:
                if way.kind != "weir" and peer_timeout is not None:
                    network.lab.tcp_timeout(peer_timeout / 1000)
                yield replace(train(way, network, say), up_bps=links.host_rate_bps)
        except NamespaceError as error:
            if way.kind == "weir":
                raise
            say(f"{way.name} not trained: {error}")  # the rest was, and is shown


def _network(
    way: Way, links: NetworkSpec, buckets: str | None
) -> contextlib.AbstractContextManager[NetworkCluster | BridgedNetwork]:
    if way.kind != "weir":
        return bridged_network(way.config.members, links)
    if buckets is None:
        return network_cluster(way.config.members, network=links)
    return network_cluster(way.config.members, rate=buckets, network=NetworkSpec(links.shape))


def ways(
    configs: Sequence[TrainConfig],
    peers: Sequence[str],
    budget: float = 0.0,
    limit_s: float = float("inf"),
) -> list[Way]:
    """Return all ways to train, peers first. Peers have the settings of the first method but its own."""
    first = configs[0]
    found = [_peer(peer, first, limit_s) for peer in peers]
    found += [Way(", ".join([called(config), *_words(config)]), "weir", config) for config in configs]
    able = [config for config in configs if find_method(config.method).kind == "sparsifier"]
    if budget and able:
        lossy = able[0].model_copy(update={"loss_budget": budget})
        found.append(Way(f"{called(lossy)}, {lossy.method}, budget {budget:g}", "weir", lossy))
    return found


def _peer(words: str, first: TrainConfig, limit_s: float) -> Way:
    settings = settings_of(words)
    kind: Kind = settings["method"]
    plain = {name: TrainConfig.model_fields[name].default for name in _NAMED if name != "lr"}
    given = first.model_dump() | plain | {"lr": PRESETS[first.model].lr} | settings
    if kind not in HOOKS:
        given["method"] = first.method
    said = [f"{_NAMED.get(name, name)} {value}" for name, value in settings.items() if name != "method"]
    return Way(", ".join([PEERS[kind], *said]), kind, make_config(**given), limit_s)


_NAMED: Final = {
    "lr": "rate",
    "powersgd_rank": "rank",
    "update_share": "share",
    "update_sample_share": "sampled",
    "update_bits": "bits",
}
"""Settings that differ between ways to train the same model, and what their names in tables are."""


def _settings(config: TrainConfig) -> list[str]:
    """Return those settings of a way that are not the usual ones, as text."""
    usual = {name: TrainConfig.model_fields[name].default for name in _NAMED}
    usual["lr"] = PRESETS[config.model].lr
    return [
        f"{words} {getattr(config, name):g}"
        for name, words in _NAMED.items()
        if getattr(config, name) != usual[name]
    ]


def called(config: TrainConfig) -> str:
    """Return what Weir is called in the mode of a training."""
    return "Weir's PS" if config.mode == "ps" else "Weir"


def _words(config: TrainConfig) -> list[str]:
    """Return a training's method, and what else tells it from others with the same links."""
    return [
        config.method,
        *([f"{config.outer_method} every {config.outer_steps}"] if config.outer_steps else []),
        *([config.consistency] if config.consistency != "sync" else []),
        *([f"filter {config.push_filter}"] if config.push_filter != "0" else []),
        *([] if config.overlap else ["no overlap"]),
        *_settings(config),
    ]


def report(
    outcomes: Sequence[WayResult], config: TrainConfig, target: float | None, uplinks: str | None = None
) -> Iterator[Table | Plot]:
    """Yield the table and the picture of what came out."""
    lines = links_line(config) + (f", workers send at {uplinks}" if uplinks else "")
    less = PRESETS[config.model].metric == "loss"
    if target is None:
        target = (max if less else min)(o.best for o in outcomes if o.complete)

    def shown(value: float) -> str:
        return f"{value:.3f}" if less else f"{value:.1%}"

    goal, metric = f"to {shown(target)}", PRESETS[config.model].metric
    steps, source = dense_steps(target, outcomes, lambda: dense_curve(config))
    reached = {o.name: time_to(target, o, steps) for o in outcomes}
    first = next(o for o in outcomes if o.way.kind == "weir")
    notes = [
        *map(_counted, outcomes),
        f"time {goal}: training time at the first evaluation with that {metric}; evaluated "
        + (f"every {config.evaluate_every} steps" if config.evaluate_every else "after each epoch"),
        *_savings(outcomes, reached),
        "worker, switches, machine: processor seconds for each GB of a worker's gradients, the worker's with "
        "forward and backward pass, the machine's with all that ran",
        "memory: the most that was resident of a worker in its steps (VmHWM), beyond what its process held "
        "before it joined the group (VmRSS): model, gradients, optimizer and activations are in it; the "
        "switch's: VmHWM",
        *_memory(outcomes),
        "peers: on the kernel's bridges, over links with the same rate, losses and bursts, spread over "
        "the spines without collision; their packets "
        + (
            "wait with the bursts', as Weir's do"
            if config.background_dscp
            else "pass the bursts', as Weir's do"
        ),
    ]
    if source:
        notes.append(f"cut short: its own time per step times the number of steps {source}")
    if any(o.way.kind == "ps" for o in outcomes):
        place = "on a host of its own" if config.mode == "ps" else "on rank 0's host, free for that rank"
        notes.append(f"PS: one dense parameter server over TCP, {place}")
    yield Table(
        f"{config.model}, {config.workers} workers, {lines}",
        (
            Column(goal, duration),
            Column("step", duration, "median, of the slowest worker"),
            Column("p99", duration, "of all workers' steps but their first"),
            Column(metric, shown),
            Column("missing", lambda part: f"{part:.2%}"),
            Column("trims", note="packets whose lanes switches cut off"),
            Column("marks", note="packets that switches marked"),
            Column("line", lambda part: f"{part:.0%}", "of its link's rate that a worker's packets take up"),
            *(Column(name, lambda seconds: f"{seconds:.1f}") for name in _USE),
            Column("memory", byte_count, "of the worker with most"),
            Column("switch memory", byte_count, "of the switch with most"),
        ),
        tuple(_row(outcome, goal, reached) for outcome in outcomes),
        peers=(*(o.name for o in outcomes if o.way.kind != "weir"), first.name),
        notes=tuple(notes),
    )
    yield Plot(
        f"{config.model}, {config.workers} workers: {metric} over training time",
        [
            Panel(
                links_line(config),
                "seconds of training (evaluation left out)",
                "loss on held-out data" if less else "accuracy on held-out data, %",
                [_line(outcome, reached[outcome.name], target) for outcome in outcomes],
                "x",
                (target if less else 100 * target,),
            )
        ],
    )


def _row(outcome: WayResult, column: str, reached: Mapping[str, float | None]) -> Row:
    record, used = outcome.record, outcome.record.processor_per_gigabyte()
    seconds = (None, None, None) if used is None else (used.own, used.others, used.machine)
    return Row(
        outcome.name,
        {
            column: reached[outcome.name],
            "step": outcome.step_s,
            "p99": outcome.step_p99_s,
            "loss" if outcome.less else "accuracy": outcome.metric(record.evaluations[-1])
            if record.evaluations
            else None,
            "missing": record.delivery.missing_share if outcome.way.kind == "weir" else None,
            "trims": None if outcome.counts is None else outcome.counts.trims,
            "marks": None if outcome.counts is None else outcome.counts.marks,
            "line": outcome.of_line,
            **{name: each or None for name, each in zip(_USE, seconds, strict=True)},
            "memory": record.memory or None,
            "switch memory": outcome.switch_memory,
        },
        counts=mechanisms(outcome.way.config, record),
    )


def _line(outcome: WayResult, seconds: float | None, target: float) -> Line:
    """Return a run's curve; where it was cut short, a dashed one to where it would reach the target."""
    points, label = outcome.curve(), outcome.name
    if not outcome.complete:
        label += f" (from {len(outcome.record.steps)} steps)"
        if seconds is not None and outcome.time_to(target) is None:
            points = [*points, (seconds, target)]
    style = "o-" if outcome.complete else "o--"
    return Line(label, [x for x, _ in points], [y if outcome.less else 100 * y for _, y in points], style)


def time_to(target: float, outcome: WayResult, dense_steps: int | None) -> float | None:
    """Return seconds of training to a metric of ``target``; None where that is not reached, or not known.

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
    """Return steps that dense training takes to a target, and how that is known ("" where nobody needs
    it).

    From a dense run that came so far, whose sums are every dense run's but for rounding; without one, from
    ``curve``: steps and metric of dense training without a network.
    """
    needed = [o for o in outcomes if o.way.dense and not o.complete and o.time_to(target) is None]
    if not needed:
        return None, ""
    for outcome in outcomes:
        if outcome.way.dense and (steps := outcome.steps_to(target)) is not None:
            return steps, f"as {outcome.name} needed"
    if any(o.way.dense and o.complete for o in outcomes):
        return None, "that no dense run reached"
    steps = next((steps for steps, value in curve() if outcomes[0].reaches(value, target)), None)
    if steps is None:
        return None, "that dense training does not reach"
    return steps, f"as dense training needs: {steps}, counted in one process without a network"


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


def _memory(outcomes: Sequence[WayResult]) -> list[str]:
    """Return the memory of each way's workers, in that of plain DDP's over Gloo."""
    plain = next((o.record.memory for o in outcomes if o.way.kind == "gloo"), 0)
    parts = [f"{o.name} {o.record.memory / plain:.2f}" for o in outcomes if o.way.kind != "gloo" and plain]
    return [f"memory, in Gloo's: {'; '.join(parts)}"] if parts else []


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
