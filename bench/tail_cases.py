# SPDX-License-Identifier: Apache-2.0
"""The contenders of ``weir bench tail``, and one run of one of them in the simulator.

Two settings. Collectives: all workers all-reduce a tensor; Weir sums it in leaves and spines, its peer is a
ring over DCTCP. Parameter server: workers push a tensor, cut into one shard per server, and pull the sums;
Weir sends flows, its peer DCTCP streams. Tensors come one after the other, with pauses; a tensor's completion
time is from its begin to the last worker's end.

Every contender but the first has a twin: the same without the mechanism that it is there for, or DCTCP in the
same class of the switches and of the hosts' queues. Gains are stated over the twin. What a mechanism did is
counted in the switches; a contender whose mechanism did nothing has no gain, whatever its times are.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from softp4.runtime.queueing import Queueing
from weir.controller.qos import TRIM_AT, WEIR_CLASSES, ClassSpec, Loss, Qos, SprayName
from weir.controller.tables.spraying import UP_GROUP
from weir.controller.topology import Topology, leaf_spine
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.flows.frames import Address
from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.flow_ends import ServerEnds, WorkerEnd
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.shards import ParameterInfo, Shards
from weir.host_agent.parameter_server.terms import OptimizerSpec
from weir.host_agent.parameter_server.update_server import ServerRules, UpdateServer
from weir.host_agent.parameter_server.update_worker import UpdateWorker, WorkerRules
from weir.host_agent.torch.parameter_server.asynchronous_server import TorchOptimizer
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.background import Background, IncastBursts
from weir.simulator.clock import SECOND
from weir.simulator.congestion import Algorithm
from weir.simulator.host import Host, Work
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.simulator.ring import Ring
from weir.simulator.stream import OVERHEAD, Stream
from weir.simulator.tcp import MSS, TcpConfig
from weir.wire.definition import LAYER_CLASSES, RELIABLE_DSCP, Op, Treatment, dscp

Setting = Literal["collectives", "server"]
SETTINGS: Final[tuple[Setting, ...]] = ("collectives", "server")

RACKS: Final = 4
BLOCK: Final = 256
LANE: Final = 4
BEST_EFFORT_MARK: Final = 20
TREATMENTS: Final = "WeirIngress.queueing.treatments"
TURNS: Final = "WeirIngress.spraying.turns"


@dataclass(frozen=True)
class Scenario:
    """Links, background and tensors: the same for every contender.

    Every rack has workers, one server and background hosts, which send bursts to any host of the other racks.
    load: what the background takes of the links between racks, headers included, on average. loss: share of
    packets that those links lose. Times in seconds, sizes in bytes. budget: share of a tensor's lanes that
    may go missing where a contender allows it (with servers: of what is pushed). first_window: of a flow, in
    chunks. warmup: tensors before those that count, in which windows and round-trip times are learned.
    """

    racks: int = RACKS
    workers: int = 4  # in a rack
    others: int = 4  # background hosts in a rack
    spines: int = 2
    rate: int = 1_000_000_000
    delay_ns: int = 1_000
    depth: int = 128
    load: float = 0.7
    loss: float = 0.0
    fan_in: int = 8
    burst: int = 16_000
    tensor: int = 65_536
    tensors: int = 100
    warmup: int = 3
    pause: float = 0.002
    min_rto: float = 0.01
    budget: float = 0.1
    slots: int = 64
    first_window: int = 8

    @property
    def names(self) -> tuple[list[str], list[str], list[str]]:
        """Return the names of workers, servers and background hosts."""
        per_rack = self.workers + 1 + self.others
        racks = [[f"h{rack * per_rack + i}" for i in range(1, per_rack + 1)] for rack in range(self.racks)]
        workers = [name for rack in racks for name in rack[: self.workers]]
        servers = [rack[self.workers] for rack in racks]
        return workers, servers, [name for rack in racks for name in rack[self.workers + 1 :]]

    def floor(self, setting: Setting) -> float:
        """Return how long the busiest link takes for a tensor's bytes, headers included, in seconds.

        Of an all-reduce a worker's own, each way at once; of servers theirs, for all pushes, then all pulls.
        """
        bits = 8 * self.tensor * (1 + OVERHEAD / MSS) / self.rate
        return bits if setting == "collectives" else 2 * self.workers * bits

    @property
    def strangers(self) -> IncastBursts:
        """Return the background traffic that makes this load."""
        between_racks = self.racks * self.spines * self.rate
        return IncastBursts(self.load * between_racks * MSS / (MSS + OVERHEAD), self.fan_in, self.burst)


PRESETS: Final[dict[str, Scenario]] = {
    "dlcp": Scenario(racks=9, workers=15, others=0, spines=4, rate=100_000_000_000),
    "dlcp-testbed": Scenario(racks=1, workers=9, others=0, spines=1, rate=100_000_000_000),
    "mlt": Scenario(racks=2, workers=3, others=0, spines=2, rate=100_000_000_000),
}
"""Set-ups that DLCP and MLT report, as far as that is known: 144 hosts at 100 Gbit/s in ns-3; ten machines at
one switch, with a parameter server; eight machines under leaves with two uplinks each. Which hosts are
servers, and how deep queues are, is our choice."""


Mechanism = Literal["sprayed", "priority", "trimmed", "dropped", "shortest first", "stopped early"]


@dataclass(frozen=True)
class Contender:
    """One way to move tensors. ``weir`` False: DCTCP.

    name: begins with a letter of its own. twin: the letter of the contender that it is compared with. shows:
    the mechanism in which they differ; None: they differ in the transport. priorities: in the class of Weir's
    front layer, in switches and hosts; else best effort. sheds: what becomes of expendable packets in a deep
    queue; "stopped": nothing, but receivers are content as soon as the budget allows it, as in MLT.
    algorithm: of TCP.
    """

    name: str
    twin: str = ""
    shows: Mechanism | None = None
    weir: bool = True
    spray: bool = True
    priorities: bool = True
    sheds: Literal["nothing", "trimmed", "dropped", "stopped"] = "nothing"
    shortest_first: bool = False
    algorithm: Algorithm = "dctcp"

    def fits(self, setting: Setting) -> bool:
        """Return whether it makes a difference there: every step of a ring is as short as the others, and
        sums know no receivers.
        """
        return setting != "collectives" or not (self.shortest_first or self.sheds == "stopped")

    def qos(self) -> Qos:
        """Return the switches' settings. Without priorities every class is treated as best effort is."""
        spray: SprayName = "round_robin" if self.spray else "hash"
        if not self.priorities:
            classes = {code: ClassSpec(mark_at=BEST_EFFORT_MARK) for code in map(dscp, range(LAYER_CLASSES))}
            classes[RELIABLE_DSCP] = ClassSpec(queue=0, mark_at=BEST_EFFORT_MARK)
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
    Contender("e d, shortest first", "d", "shortest first", weir=False, spray=False, shortest_first=True),
    Contender("f Weir, lossless", "d"),
    Contender("g f + trimming", "f", "trimmed", sheds="trimmed"),
    Contender("h f + WRED", "f", "dropped", sheds="dropped"),
    Contender("i f + early stop", "f", "stopped early", sheds="stopped"),
    Contender("j CUBIC", weir=False, spray=False, priorities=False, algorithm="cubic"),
)
FRONT: Final = dscp(0)


@dataclass
class TailResult:
    """times: of each tensor, in seconds. background: of its flows. counts: what the hosts counted, summed.
    acted: packets that the switches treated by each mechanism; of spraying, how often a switch was seen in
    the middle of a round of turns; of early stops, lanes that receivers did without.
    """

    times: list[float] = field(default_factory=list)
    background: list[float] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    acted: dict[Mechanism, int] = field(default_factory=dict)

    def add(self, other: "TailResult") -> None:
        """Add another seed's."""
        self.times += other.times
        self.background += other.background
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        for mechanism, count in other.acted.items():
            self.acted[mechanism] = self.acted.get(mechanism, 0) + count

    def shows(self, contender: Contender) -> bool:
        """Return whether the contender's mechanism did anything."""
        return contender.shows is None or self.acted.get(contender.shows, 0) > 0


Begin = Callable[[int], Callable[[], bool]]  # begins a tensor; the answer tells whether it is done


def run(setting: Setting, contender: Contender, scenario: Scenario, seed: int) -> TailResult:
    """Return one run in virtual time."""
    gc.set_threshold(100_000, 50, 50)  # of many frames and events none is a cycle: a fifth of the time
    workers, servers, others = scenario.names
    with Network(
        _topology(scenario, contender.qos()),
        seed=seed,
        link=LinkSpec(scenario.rate, Faults(delay=scenario.delay_ns)),
        queueing=Queueing(depth_packets=scenario.depth),
        host_priorities=contender.priorities,
    ) as network:
        outcome = TailResult()
        tcp = TcpConfig(min_rto=round(scenario.min_rto * SECOND))
        own_tcp = replace(tcp, dscp=FRONT) if contender.priorities else tcp
        own_tcp = replace(own_tcp, shortest_first=contender.shortest_first, algorithm=contender.algorithm)
        if setting == "collectives":
            if contender.weir:
                begin = _tree(network, contender, scenario, seed, workers, outcome)
            else:
                begin = _ring(network, scenario, own_tcp, workers, outcome)
        elif contender.weir:
            begin = _flows(network, contender, scenario, workers, servers, outcome)
        else:
            begin = _streams(network, scenario, own_tcp, workers, servers, outcome)
        background = None
        if scenario.load:
            everybody = [*workers, *servers, *others]
            background = Background(
                network, scenario.strangers, senders=others, receivers=everybody, seed=seed, config=tcp
            )
        random = Random(f"{seed} pauses")
        network.run_for(0.02)
        for number in range(scenario.warmup + scenario.tensors):
            network.run_for(random.random() * scenario.pause)
            begun = network.clock.now
            network.run(begin(number), limit=60)
            if number >= scenario.warmup:
                outcome.times.append((network.clock.now - begun) / SECOND)
            turns = sum(node.switch.register(TURNS).read(UP_GROUP) != 0 for node in network.nodes.values())
            outcome.acted["sprayed"] = outcome.acted.get("sprayed", 0) + turns
        if background is not None:
            outcome.background = [time / SECOND for time in background.times]
        outcome.acted.update(_treated(network))
        outcome.acted["stopped early"] = outcome.counts.get("missing", 0)
        return outcome


def _treated(network: Network) -> Iterator[tuple[Mechanism, int]]:
    """Return the packets that the switches treated as each mechanism does."""
    switches = [node.switch for node in network.nodes.values()]

    def treated(treatment: Treatment, queues: Sequence[int] = range(8)) -> int:
        cells = [treatment << 3 | queue for queue in queues]
        return sum(switch.counter(TREATMENTS).read(cell).packets for switch in switches for cell in cells)

    own = FRONT >> 3
    yield "priority", treated(Treatment.QUEUED, [own])
    yield "trimmed", treated(Treatment.TRIMMED)
    yield "dropped", treated(Treatment.DROPPED)
    yield "shortest first", treated(Treatment.QUEUED, range(1, own))


def _topology(scenario: Scenario, qos: Qos) -> Topology:
    hosts = scenario.workers + 1 + scenario.others
    racks, spines = range(1, scenario.racks + 1), range(1, scenario.spines + 1)
    if scenario.loss:
        ports = [(f"leaf{rack}", hosts + spine) for rack in racks for spine in spines]
        ports += [(f"spine{spine}", rack) for rack in racks for spine in spines]
        losses = tuple(Loss(switch=name, port=port, probability=scenario.loss) for name, port in ports)
        qos = qos.model_copy(update={"losses": losses})
    return leaf_spine(scenario.racks, scenario.spines, hosts, target="soft", qos=qos)


class _All:
    """A test that all of some hosts are idle. Asked after every event, it only looks at one that was not."""

    __slots__ = ("_hosts",)

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)

    def __call__(self) -> bool:
        while self._hosts and self._hosts[-1].idle:
            self._hosts.pop()
        return not self._hosts


class _Count:
    """A test that something has happened so many times."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def one(self) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0


# -- collectives ---------------------------------------------------------------------------------------


def _ring(
    network: Network, scenario: Scenario, tcp: TcpConfig, workers: list[str], outcome: TailResult
) -> Begin:
    ring = Ring(network, workers, tcp)

    def begin(_number: int) -> Callable[[], bool]:
        count = _Count(len(workers))
        for rank in range(len(workers)):
            ring.reduce(rank, scenario.tensor, count.one)
        _tell_streams(outcome, ring.streams)
        return count

    return begin


def _tree(
    network: Network,
    contender: Contender,
    scenario: Scenario,
    seed: int,
    workers: list[str],
    outcome: TailResult,
) -> Begin:
    """Return a float tensor as `collectives.float_sum` has it: an exponent per block (MAX), then lanes
    (ADD).
    """
    spines = None if contender.spray else [f"spine{1 + seed % scenario.spines}"]
    job = network.admit(
        workers,
        slots=scenario.slots,
        spines=spines,
        initial_rto=2 * scenario.min_rto,
        min_rto=scenario.min_rto,
    )
    lanes = scenario.tensor // LANE
    rng = np.random.default_rng(seed)
    own = [rng.integers(1, 1 << 20, lanes, dtype=np.uint32) for _ in workers]
    exponents = np.full(-(-lanes // BLOCK), 127, np.uint32)
    budgets = np.array([int(scenario.budget * lanes)], np.uint64)
    expected = np.sum(own, axis=0, dtype=np.uint32)
    arrays: list[npt.NDArray[np.uint32]] = []

    def check() -> None:
        """Check that all replicas are the same, and exact where nothing may be lost."""
        for array in arrays:
            if not np.array_equal(array, arrays[0] if contender.sheds != "nothing" else expected):
                raise AssertionError("replicas differ")
        for worker in job.workers:
            for report in worker.reports:
                for name in ("timeouts", "releases", "trimmed", "marked", "retransmissions"):
                    outcome.counts[name] = outcome.counts.get(name, 0) + getattr(report, name)
                outcome.counts["lanes"] = outcome.counts.get("lanes", 0) + report.entered.lanes
                outcome.counts["missing"] = outcome.counts.get("missing", 0) + report.returned.lanes
            worker.reports.clear()

    def begin(_number: int) -> Callable[[], bool]:
        check()
        arrays[:] = [lanes_of.copy() for lanes_of in own]
        for worker, array in zip(job.workers, arrays, strict=True):
            worker.submit(Work(Op.MAX, 32, exponents.copy(), service=ServiceClass()))
            service = ServiceClass(budgets=budgets) if contender.sheds != "nothing" else ServiceClass()
            worker.submit(Work(Op.ADD, BLOCK, array, service=service))
        return _All(job.workers)

    return begin


# -- parameter server ----------------------------------------------------------------------------------


def _streams(
    network: Network,
    scenario: Scenario,
    tcp: TcpConfig,
    workers: list[str],
    servers: list[str],
    outcome: TailResult,
) -> Begin:
    """Return every worker a stream to and from every server, which answers when it has all pushes of a
    shard.
    """
    shard = scenario.tensor // len(servers)
    pulls: list[Stream] = []
    every: list[Stream] = []
    current = _Count(0)

    def serve(server: str) -> list[Stream]:
        pushes = [network.stream(worker, server, tcp) for worker in workers]
        answers = [network.stream(server, worker, tcp) for worker in workers]
        every.extend([*pushes, *answers])
        state = {"done": 0}

        def pushed(_total: int) -> None:
            if all(push.receiver.expected >= (state["done"] + 1) * shard for push in pushes):
                state["done"] += 1
                for answer in answers:
                    answer.write(shard)

        def pulled(total: int) -> None:
            if total % shard == 0:
                current.one()

        for push in pushes:
            push.on_bytes = pushed
        for answer in answers:
            answer.on_bytes = pulled
        return pushes

    pulls = [push for server in servers for push in serve(server)]

    def begin(_number: int) -> Callable[[], bool]:
        _tell_streams(outcome, every)
        current.left = len(workers) * len(servers)
        for push in pulls:
            push.write(shard)
        return current

    return begin


def _flows(
    network: Network,
    contender: Contender,
    scenario: Scenario,
    workers: list[str],
    servers: list[str],
    outcome: TailResult,
) -> Begin:
    """Run Weir's parameter servers, synchronous over flows: bounded pushes, lossless pulls."""
    lanes = scenario.tensor // LANE // len(servers)
    share = scenario.budget if contender.sheds != "nothing" else 0.0
    config = partial(
        FlowConfig,
        early_stop=contender.sheds == "stopped",
        first_window=scenario.first_window,
        initial_rto=2 * scenario.min_rto,
        max_loss=share,
    )
    addresses = {name: Address(network.stations[name].host.ip) for name in [*workers, *servers]}
    hosts = {name: network.flows(name) for name in [*workers, *servers]}
    pieces = Shards.of([ParameterInfo("tensor", (lanes,))], 1).pieces
    together = Consistency(0)
    machines: list[UpdateServer] = []
    served: list[ServerEnds] = []
    for name in servers:
        optimizer = TorchOptimizer(pieces, OptimizerSpec("SGD", ({"lr": 1e-3},)))
        machines.append(UpdateServer(optimizer, ServerRules(together)))
        served.append(ServerEnds(machines[-1], hosts[name].mux))
        hosts[name].react = served[-1].advance
    current = _Count(0)
    clients: list[list[tuple[UpdateWorker, WorkerEnd]]] = []

    def collect(own: list[tuple[UpdateWorker, WorkerEnd]]) -> None:
        for client, end in own:
            for message in end.received():
                waited = not client.may_step
                client.on_message(message)
                if waited and client.may_step:
                    current.one()
            for settled in end.settlements():
                counts = outcome.counts
                for what, value in (
                    ("timeouts", settled.timeouts),
                    ("retransmissions", settled.resent),
                    ("trimmed", settled.trimmed),
                    ("lanes", settled.entered.lanes),
                    ("missing", settled.returned.lanes),
                ):
                    counts[what] = counts.get(what, 0) + value

    for rank, name in enumerate(workers):
        own = []
        for number, (server, ends) in enumerate(zip(machines, served, strict=True)):
            words = np.empty(lanes, np.uint32)
            client = UpdateWorker(rank, 1, words, WorkerRules(together), Residual(lanes))
            for answer in server.handle(client.hello()):  # before the run, so that steps alone are measured
                client.on_message(answer)
            first = 1 + 2 * (number * len(workers) + rank)
            up, down = config(first, rank), config(first + 1, rank)
            ends.connect(rank, 1, up, down, addresses[name])
            own.append(
                (client, WorkerEnd(hosts[name].mux, addresses[servers[number]], up, down, loss_budget=share))
            )
        clients.append(own)
        hosts[name].react = partial(collect, own)
    values = np.random.default_rng(1).standard_normal(lanes).astype(np.float32)

    def begin(_number: int) -> Callable[[], bool]:
        current.left = len(workers) * len(servers)
        for name, own in zip(workers, clients, strict=True):
            for client, end in own:
                end.submit(client.push(values, 1e-3))
            hosts[name].pump()
        return current

    return begin


def _tell_streams(outcome: TailResult, streams: Sequence[Stream]) -> None:
    outcome.counts["timeouts"] = sum(stream.sender.timeouts for stream in streams)
    outcome.counts["retransmissions"] = sum(stream.sender.retransmissions for stream in streams)
