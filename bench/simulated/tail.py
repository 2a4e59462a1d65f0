# SPDX-License-Identifier: Apache-2.0
"""Completion times of tensors, of workers that all send at once, where others' bursts share the links.

Two settings. Collectives: all workers all-reduce a tensor; Weir sums it in leaves and spines, its peer is a
ring over DCTCP. Server: workers push a tensor, cut into one shard per server, and pull the sums; Weir sends
flows, its peer DCTCP streams. Tensors come one after the other, with pauses; a tensor's completion time is
from its begin to the last worker's end.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from statistics import mean
from typing import Final, Literal, cast

import numpy as np

from weir.bench.case import ParameterError, Run, parameter
from weir.bench.results import Column, Line, Panel, Plot, Row, Scalar, Table
from weir.bench.simulated import fabric
from weir.bench.simulated.fabric import FRONT, TIMES, Fabric, Outcome, outcomes, per_cent, percentile, treated
from weir.bench.simulated.transports import BLOCK, LANE, Flows, Rings, Sums, TcpServers, Transport
from weir.controller.qos import TRIM_AT, WEIR_CLASSES, ClassSpec, Loss, Qos, SprayName
from weir.controller.tables.spraying import UP_GROUP
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.background import Background, IncastBursts
from weir.simulator.clock import SECOND
from weir.simulator.congestion import Algorithm
from weir.simulator.network import Network
from weir.simulator.stream import OVERHEAD
from weir.simulator.tcp import MSS
from weir.wire.definition import LAYER_CLASSES, RELIABLE_DSCP, Treatment, dscp

Setting = Literal["collectives", "server"]
SETTINGS: Final[tuple[Setting, ...]] = ("collectives", "server")

_BEST_EFFORT_MARK: Final = 20
_TURNS: Final = "WeirIngress.spraying.turns"
_LEAST_TENSORS: Final = 2
_LONG: Final = 4 << 20  # bytes of all workers' tensors in which windows settle: more need but one warm-up
_MOST_PANELS: Final = 6


@dataclass(frozen=True)
class Scenario(Fabric):
    """Links, background and tensors: the same for every contender.

    Every rack has workers, one server and background hosts, which send bursts to any host of the other racks.
    load: what the background takes of the links between racks, headers included, on average. loss: share of
    packets that those links lose. Times in seconds, sizes in bytes. budget: share of a tensor's lanes that
    may go missing where a contender allows it (with servers: of what is pushed). first_window: of a flow, in
    chunks. warmup: tensors before those that count, in which windows and round-trip times are learned.
    """

    setting: Setting = "server"
    workers: int = 4  # in a rack
    others: int = 4  # background hosts in a rack
    load: float = 0.7
    loss: float = 0.0
    fan_in: int = 8
    burst: int = 16_000
    tensor: int = 65_536
    tensors: int = 100
    warmup: int = 3
    pause: float = 0.002
    budget: float = 0.1
    slots: int = 64
    first_window: int = 8

    @property
    def hosts(self) -> int:
        """Hosts in a rack."""
        return self.workers + 1 + self.others

    @property
    def names(self) -> tuple[list[str], list[str], list[str]]:
        """Names of workers, servers and background hosts."""
        racks = [
            [f"h{rack * self.hosts + i}" for i in range(1, self.hosts + 1)] for rack in range(self.racks)
        ]
        workers = [name for rack in racks for name in rack[: self.workers]]
        servers = [rack[self.workers] for rack in racks]
        return workers, servers, [name for rack in racks for name in rack[self.workers + 1 :]]

    @property
    def floor(self) -> float:
        """Seconds that the busiest link takes for a tensor's bytes, headers included.

        Of an all-reduce a worker's own, each way at once; of servers theirs, for all pushes, then all pulls.
        """
        return self._floor(1)

    @property
    def floor_within_budget(self) -> float:
        """As ``floor``, without the lanes that may be missing: of servers, of pushes alone."""
        return self._floor(1 - self.budget)

    def _floor(self, delivered: float) -> float:
        bits = 8 * self.tensor * (1 + OVERHEAD / MSS) / self.rate
        return delivered * bits if self.setting == "collectives" else (delivered + 1) * self.workers * bits

    @property
    def strangers(self) -> IncastBursts:
        """Background traffic that makes this load."""
        between_racks = self.racks * self.spines * self.rate
        return IncastBursts(self.load * between_racks * MSS / (MSS + OVERHEAD), self.fan_in, self.burst)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Losses of the links between racks."""
        racks, spines = range(1, self.racks + 1), range(1, self.spines + 1)
        ports = [(f"leaf{rack}", self.hosts + spine) for rack in racks for spine in spines]
        ports += [(f"spine{spine}", rack) for rack in racks for spine in spines]
        return tuple(Loss(switch=name, port=port, probability=self.loss) for name, port in ports)


@dataclass(frozen=True)
class Contender(fabric.Contender):
    """One way to move tensors. ``weir`` False: DCTCP.

    priorities: in the class of Weir's front layer, in switches and hosts; otherwise best effort. sheds: what
    becomes of expendable packets in a deep queue; "stopped": nothing, but receivers are content as soon as
    the budget allows it, as in MLT. algorithm: of TCP.
    """

    weir: bool = True
    spray: bool = True
    priorities: bool = True
    sheds: Literal["nothing", "trimmed", "dropped", "stopped"] = "nothing"
    class_by_remaining: bool = False
    algorithm: Algorithm = "dctcp"

    def fits(self, setting: Setting) -> bool:
        """Return whether it makes a difference there: every step of a ring is as short as the others, and
        sums know no receivers.
        """
        return setting != "collectives" or not (self.class_by_remaining or self.sheds == "stopped")

    def qos(self) -> Qos:
        """Return the switches' settings. Without priorities every class is treated as best effort is."""
        spray: SprayName = "round_robin" if self.spray else "hash"
        if not self.priorities:
            classes = {code: ClassSpec(mark_at=_BEST_EFFORT_MARK) for code in map(dscp, range(LAYER_CLASSES))}
            classes[RELIABLE_DSCP] = ClassSpec(queue=0, mark_at=_BEST_EFFORT_MARK)
            return Qos(spray=spray, priorities=False, classes=classes)
        if self.sheds in ("dropped", "stopped"):  # as WRED does where nothing can be trimmed
            drops = self.sheds == "dropped"
            wred = {
                code: ClassSpec(trim_at="never", drop_at=TRIM_AT[magnitude] if drops else "never")
                for code, (_, magnitude) in WEIR_CLASSES.items()
            }
            return Qos(spray=spray, classes=wred)
        return Qos(spray=spray)


CONTENDERS: Final = (
    Contender("a DCTCP", weir=False, spray=False, priorities=False),
    Contender("b Weir, hashed", "a", spray=False, priorities=False),
    Contender("c b + spraying", "b", "sprayed", priorities=False),
    Contender("d DCTCP in Weir's class", "a", "priority", weir=False, spray=False),
    Contender(
        "e d, class by bytes left", "d", "lower class", weir=False, spray=False, class_by_remaining=True
    ),
    Contender("f Weir, lossless", "d"),
    Contender("g f + trimming", "f", "trimmed", sheds="trimmed"),
    Contender("h f + WRED", "f", "dropped", sheds="dropped"),
    Contender("i f + early stop", "f", "stopped early", sheds="stopped"),
    Contender("j CUBIC", weir=False, spray=False, priorities=False, algorithm="cubic"),
)
_LOSSLESS: Final = "f"


@dataclass(frozen=True)
class Parameters:
    """The scenarios, all combinations of what is listed, and the contenders."""

    setting: tuple[str, ...] = parameter(
        ("server",), "collectives: all-reduce; server: push and pull", choices=SETTINGS
    )
    load: tuple[float, ...] = parameter(
        (0.0,), "share of the links between racks that others' bursts take", least=0, most=1
    )
    workers: tuple[int, ...] = parameter((16,), "of the job, as many in each rack", least=1, most=1024)
    depth: tuple[int, ...] = parameter((32,), "of a switch queue", unit="packets", least=1)
    kilobytes: tuple[int, ...] = parameter((256,), "size of a tensor", unit="KiB", least=4)
    contenders: str = parameter("adefghi", "those to measure, by their letters, a to j")
    tensors: int = parameter(20, "in a run", least=1)
    megabytes: float | None = parameter(
        None, "that workers push in a run: larger tensors, fewer of them", unit="MiB", above=0
    )
    loss: float = parameter(0.0, "share of packets that links between racks lose", least=0, most=0.5)
    budget: float = parameter(0.1, "share of lanes that may go missing", least=0, most=1)
    least_wait: float | None = parameter(
        None,
        "least time-out and probe of all contenders; unless said, three round trips, at least 0.2",
        unit="ms",
        least=0.01,
    )
    racks: int = parameter(4, "racks", least=1, most=32)
    others: int = parameter(4, "background hosts in a rack", least=0)
    spines: int = parameter(2, "spines", least=1, most=8)
    gigabits: float = parameter(1.0, "rate of all links", unit="Gbit/s", above=0)
    calm: bool = parameter(False, "a mechanism may do nothing where its twin lost nothing")

    def __post_init__(self) -> None:
        if not self.contenders or set(self.contenders) - {one.name[0] for one in CONTENDERS}:
            raise ParameterError(f"contenders are letters from a to j, not {self.contenders!r}")
        if any(count % self.racks for count in self.workers):
            raise ParameterError(f"workers: as many in each of {self.racks} racks")
        if any(self.load) and not self.others:
            raise ParameterError("load: all hosts there are the job's, nobody is left to make it")

    def scenarios(self) -> list[Scenario]:
        """Return all scenarios."""
        return [
            Scenario(
                racks=self.racks,
                spines=self.spines,
                rate=round(self.gigabits * 1e9),
                depth=depth,
                setting=cast(Setting, setting),
                workers=workers // self.racks,
                others=self.others,
                load=load,
                loss=self.loss,
                tensor=1024 * size,
                tensors=self._tensors(1024 * size * workers),
                warmup=1 if self.megabytes and 1024 * size * workers > _LONG else 3,
                least_wait=None if self.least_wait is None else self.least_wait / 1000,
                budget=self.budget,
            )
            for workers, depth, size, setting, load in product(
                self.workers, self.depth, self.kilobytes, self.setting, self.load
            )
        ]

    def _tensors(self, size: int) -> int:
        """Return how many tensors a run has. size: of all workers', in bytes."""
        if self.megabytes is None:
            return self.tensors
        return max(_LEAST_TENSORS, min(self.tensors, int(self.megabytes * 2**20 / size)))


def run(parameters: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Simulate all scenarios."""
    chosen = [one for one in CONTENDERS if one.name[0] in parameters.contenders]
    found = outcomes(
        simulate, parameters.scenarios(), lambda s: [one for one in chosen if one.fits(s.setting)], run
    )
    yield Table(
        "Completion time of a tensor, in virtual time",
        (
            *TIMES,
            Column("training", lambda gain: f"{gain:+.0%}", _TRAINING),
            Column("time-outs", lambda n: f"{n:.2f}", "for each tensor"),
            Column("sent again", lambda n: f"{n:.1f}", "packets for each tensor"),
            Column("missing", per_cent, "share of the lanes"),
            Column("others, ms", fabric.ms, "p99 of the background's flows"),
        ),
        tuple(row for scenario, one in found.items() for row in _rows(scenario, one, parameters)),
        floor="of floor",
        notes=tuple(_notes(next(iter(found)), len(run.seeds))),
    )
    if len(found) <= _MOST_PANELS:
        yield Plot("Completion times of tensors", [_panel(*each) for each in found.items()])


_TRAINING: Final = (
    "throughput of training that computes between tensors as long as the busiest link takes for one, over "
    "j's or else the first contender's"
)


def _rows(scenario: Scenario, found: dict[Contender, Outcome], parameters: Parameters) -> Iterator[Row]:
    first = next((one for one in found if one.algorithm == "cubic"), next(iter(found)))
    calm = {one.name[0] for one, outcome in found.items() if not outcome.counts.get("retransmissions")}

    def values(contender: Contender, one: Outcome) -> dict[str, float | None]:
        faster = (scenario.floor + mean(found[first].times)) / (scenario.floor + mean(one.times)) - 1
        return {
            "training": None if contender is first else faster,
            "time-outs": one.each("timeouts"),
            "sent again": one.each("retransmissions"),
            "missing": one.share("missing", "lanes"),
            "others, ms": percentile(one.beside, 99) if one.beside else None,
        }

    yield from fabric.rows(
        found,
        values,
        _setting(scenario, parameters),
        lambda one: scenario.floor if one.sheds == "nothing" else scenario.floor_within_budget,
        lambda one: parameters.calm and one.twin in calm,
    )


def _setting(scenario: Scenario, parameters: Parameters) -> dict[str, Scalar]:
    """Return what tells a scenario from the others."""
    workers = scenario.racks * scenario.workers
    every: dict[str, tuple[Scalar, Sequence[object]]] = {
        "setting": (scenario.setting, parameters.setting),
        "load": (f"load {scenario.load:.0%}", parameters.load),
        "depth": (f"{scenario.depth} packets", parameters.depth),
        "tensor": (f"{scenario.tensor >> 10} KiB", parameters.kilobytes),
        "workers": (f"{workers} workers", parameters.workers),
    }
    return {name: words for name, (words, given) in every.items() if len(given) > 1}


def _notes(scenario: Scenario, seeds: int) -> Iterator[str]:
    size = "" if not scenario.load else f", {scenario.load:.0%} of the links between racks"
    yield (
        f"{scenario.words}; in a rack {scenario.workers} workers, 1 server and {scenario.others} background "
        f"hosts, {scenario.hosts / scenario.spines:.1f}:1 oversubscribed; tensors of "
        f"{scenario.tensor >> 10} KiB, "
        f"{seeds} x {scenario.tensors}, one at a time (of the first setting, if there are several)"
    )
    yield (
        f"background: bursts of {scenario.fan_in} DCTCP flows of {scenario.burst // 1000} kB{size}; "
        "links between "
        f"racks lose {scenario.loss:.2%} of packets"
        if scenario.load
        else "no traffic but the tensors' own"
    )
    yield (
        "a, d, e, j: rings (collectives) or streams (server) over TCP; d in the class of Weir's packets, in "
        "switches and hosts; e one to three classes lower while more is left to send: of equal streams none "
        "is the shortest; j with CUBIC, which does not answer to marks. b: the path of a job's packets, "
        "or of each flow, is drawn once (ECMP). g, h: expendable packets lose their lanes in deep queues, or "
        "are dropped; i: receivers stop when they have enough, as in MLT. A budget allows "
        f"{scenario.budget:.0%} of the lanes to be missing, with servers of those pushed"
    )
    yield (
        "of floor: the busiest link's time for a tensor, less what a budget allows to be missing, over the "
        "p99; counts: packets that switches trimmed, dropped, or served by class; lanes that receivers did "
        "without"
    )


def _panel(scenario: Scenario, found: dict[Contender, Outcome]) -> Panel:
    """Return the distribution functions."""
    lines = []
    for contender, one in found.items():
        times = sorted(1000 * time for time in one.times)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        lines.append(Line(contender.name, times, shares, "steps"))
    title = (
        f"{scenario.setting}, {scenario.tensor >> 10} KiB, {scenario.depth} packets, load {scenario.load:.0%}"
    )
    return Panel(title, "completion time, ms", "share of tensors", lines, "x", (0.99,))


def simulate(scenario: Scenario, contender: Contender, seed: int) -> Outcome:
    """Return one run in virtual time."""
    gc.set_threshold(100_000, 50, 50)  # of many frames and events none is a cycle: a fifth of the time
    workers, servers, others = scenario.names
    qos = contender.qos()
    if scenario.loss:
        qos = qos.model_copy(update={"losses": scenario.losses})
    with scenario.network(scenario.hosts, seed, qos, priorities=contender.priorities) as network:
        outcome = Outcome()
        transport = _transport(network, scenario, contender, seed)
        background = None
        if scenario.load:
            everybody = [*workers, *servers, *others]
            tcp = scenario.waits.tcp()
            background = Background(
                network, scenario.strangers, senders=others, receivers=everybody, seed=seed, config=tcp
            )
        random = Random(f"{seed} pauses")
        network.run_for(0.02)
        for number in range(scenario.warmup + scenario.tensors):
            network.run_for(random.random() * scenario.pause)
            begun = network.clock.now
            network.run(transport.begin(), limit=60)
            if number >= scenario.warmup:
                outcome.times.append((network.clock.now - begun) / SECOND)
            outcome.count(transport.end())
            turns = (node.switch.register(_TURNS).read(UP_GROUP) != 0 for node in network.nodes.values())
            outcome.count({"sprayed": sum(turns)})
        if background is not None:
            outcome.beside = [time / SECOND for time in background.times]
        own = FRONT >> 3
        outcome.counts |= {
            "priority": treated(network, Treatment.QUEUED, [own]),
            "trimmed": treated(network, Treatment.TRIMMED),
            "dropped": treated(network, Treatment.DROPPED),
            "lower class": treated(network, Treatment.QUEUED, range(1, own)),
            "stopped early": outcome.counts.get("missing", 0),
        }
        return outcome


def _transport(network: Network, scenario: Scenario, contender: Contender, seed: int) -> Transport:
    """Return the transport that a contender has."""
    workers, servers, _ = scenario.names
    if contender.weir and scenario.setting == "server":
        return Flows(
            network,
            workers,
            servers,
            scenario.tensor,
            0.0 if contender.sheds == "nothing" else scenario.budget,
            early_stop=contender.sheds == "stopped",
            first_window=scenario.first_window,
            waits=scenario.waits,
        )
    if contender.weir:
        return _sums(network, scenario, contender, seed)
    tcp = replace(
        scenario.waits.tcp(),
        class_by_remaining=contender.class_by_remaining,
        algorithm=contender.algorithm,
    )
    if contender.priorities:
        tcp = replace(tcp, dscp=FRONT)
    if scenario.setting == "collectives":
        return Rings(network, workers, tcp, scenario.tensor)
    shard = scenario.tensor // len(servers)
    return TcpServers(network, workers, servers, tcp, shard, shard)


def _sums(network: Network, scenario: Scenario, contender: Contender, seed: int) -> Sums:
    workers, _, _ = scenario.names
    spines = None if contender.spray else [f"spine{1 + seed % scenario.spines}"]
    job = network.admit(
        workers,
        slots=scenario.slots,
        spines=spines,
        **scenario.waits.sums(),
    )
    lanes = scenario.tensor // LANE
    numbers = np.random.default_rng(seed)
    own = [numbers.integers(1, 1 << 20, lanes, dtype=np.uint32) for _ in workers]
    exponents = [np.full(-(-lanes // BLOCK), 127, np.uint32)] * len(workers)
    budgets = np.array([int(scenario.budget * lanes)], np.uint64)
    service = ServiceClass(budgets=budgets) if contender.sheds != "nothing" else ServiceClass()
    return Sums(job, own, exponents, [service] * len(workers))
