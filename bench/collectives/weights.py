# SPDX-License-Identifier: Apache-2.0
"""New weights from a trainer to engines: Weir, and peers over TCP on links of the same rate, taking turns.

The peers send what Weir would send, in the same code, so they differ from it in the way alone; Gloo also
broadcasts the whole weights. Every engine has the version when its SHA-256 is the trainer's.
"""

import fcntl
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple, Protocol

import torch
import torch.distributed as dist

import weir.torch
from weir.bench.case import Run, parameter
from weir.bench.collectives.weights_peers import Broadcast, Chain, Peer, Store
from weir.bench.gradients.weights import changed
from weir.bench.rank import Place
from weir.bench.ranks import RATES, Links, check_rates, every_network, run_ranks
from weir.bench.results import Column, Row, Table
from weir.host_agent.weights.versions import Replica, Source, digest_of
from weir.netns.netlink import Links as Interfaces
from weir.process.processor import ProcessorTime
from weir.report.words import byte_count

CONTENDERS: Final = {
    "weir": "Weir",
    "gloo-dense": "Gloo, dense",
    "gloo": "Gloo, coded",
    "chain": "chain, coded",
    "store": "store, coded",
}
"""Those that bring new weights, by name."""

_MS: Final = "ms"
_LAYERS: Final = 8
_WAIT_S: Final = 300.0
_PAUSE_S: Final = 0.05  # before a turn, so that the queues of the last one are empty
_LINK: Final = "eth0"
_BRIDGED: Final = "eth1"
_SIOCGIFADDR: Final = 0x8915


@dataclass(frozen=True)
class Parameters:
    """The weights, what changes in a version, who follows, and the links."""

    millions: tuple[float, ...] = parameter((25.0,), "Values, bfloat16, in millions.", above=0, most=1000)
    engines: tuple[int, ...] = parameter((1, 2, 4, 8), "Engines that follow.", least=1, most=30)
    changed: tuple[float, ...] = parameter((0.01, 0.03, 0.25, 1.0), "Shares that change.", above=0, most=1)
    moves: str = parameter(
        "unit", "How values change, but where all do: they get any bits then.", choices=("unit", "any")
    )
    rates: tuple[str, ...] = parameter(("1gbit",), RATES)
    contenders: tuple[str, ...] = parameter(tuple(CONTENDERS), "Who takes part.", choices=CONTENDERS)

    def __post_init__(self) -> None:
        check_rates(self.rates)


@dataclass(frozen=True)
class Spec:
    """Work of the ranks. switches: process ids. shaped: links have token buckets."""

    values: int
    given: Parameters
    repeats: int
    switches: tuple[int, ...]
    shaped: bool


class Turn(NamedTuple):
    """A version as one host saw it.

    began, ended: seconds of the machine's clock: when the trainer published, when an engine had it.
    processor, switch, machine: seconds of processor time. sent: bytes that the host's link took.
    """

    began: float
    ended: float
    processor: float
    switch: float
    machine: float
    sent: int


Key = tuple[int, float, str]
"""Engines, share that changes, contender."""


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure on links of every rate; without one, over shared memory."""
    rows: list[Row] = []
    hosts = max(given.engines) + 2
    for links in every_network(hosts, given.rates, run.say, () if given.rates else (1,)):
        for millions in given.millions:
            run.say(f"{millions:g} million values over {links.name} ...")
            spec = Spec(round(millions * 1e6), given, run.repeats, links.switches, links.rate is not None)
            rows += rows_of(run_ranks(measure, spec, links), spec, links)
    yield Table(
        "New weights, bfloat16, from a trainer to engines",
        (
            Column(_MS, note="from publishing until the last engine has the version, its SHA-256 compared"),
            Column("sent", byte_count, "bytes that the trainer's link took, with all headers"),
            Column("B a value", note="of these bytes"),
            Column("trainer", "{:.1f}".format, "processor seconds for each GB of weights"),
            Column("engine", "{:.1f}".format, "the same, of an engine, in the mean"),
            Column("switch", "{:.1f}".format, "the same, of the switch"),
            Column("machine", "{:.1f}".format, "the same, of all that ran: softirqs, too"),
        ),
        tuple(rows),
        peers=tuple(CONTENDERS[name] for name in given.contenders if name != "weir"),
        floor="of the least",
        notes=(
            "of the least: what the bytes that the trainer sends take on its line, over the time",
            "coded: what Weir sends, too; store: an upload to another host, then downloads by all engines",
            "links of the peers: on the kernel's bridge, with the same token buckets and offloads on",
            f"values change by one in the last place, where all change to {'any bits'}"
            if given.moves == "unit"
            else "values change to any bits",
        ),
    )


def rows_of(ranks: Sequence[Mapping[Key, list[Turn]]], spec: Spec, links: Links) -> Iterator[Row]:
    gigabytes = 2 * spec.values / 1e9
    for (engines, share, name), of_trainer in ranks[0].items():
        hosts = [rank[engines, share, name] for rank in ranks[: engines + 1]]
        turns = list(zip(*hosts, strict=True))
        sent = [turn.sent for turn in of_trainer]
        floor = None if links.rate is None else 8e3 * median(sent) / links.rate
        yield Row(
            CONTENDERS[name],
            {
                _MS: [1e3 * (max(each.ended for each in turn[1:]) - turn[0].began) for turn in turns],
                "sent": [float(each) for each in sent],
                "B a value": [each / spec.values for each in sent],
                "trainer": [turn.processor / gigabytes for turn in of_trainer],
                "engine": [sum(each.processor for each in turn[1:]) / engines / gigabytes for turn in turns],
                "switch": [turn.switch / gigabytes for turn in of_trainer],
                "machine": [turn.machine / gigabytes for turn in of_trainer],
            },
            {
                "links": links.name,
                "values": f"{spec.values / 1e6:g} M" if len(spec.given.millions) > 1 else "",
                "changed": f"{share:.0%}",
                "engines": engines,
            },
            floor=floor,
        )


class Host(Protocol):
    """A trainer's or an engine's part in the versions of one contender.

    Attributes:
        weights: of the trainer, which change in place; of an engine, of the same shapes.
    """

    weights: dict[str, torch.Tensor]

    def publish(self) -> None:
        """On the trainer: bring the weights as they are now to all engines."""

    def follow(self) -> None:
        """On an engine: wait for the next version, and check it."""

    def digest(self) -> bytes:
        """Return the SHA-256 of the version here."""

    def close(self) -> None:
        """Let go of all."""


class OverWeir:
    """``weir.torch.publish`` and ``subscribe``."""

    def __init__(self, place: Place, name: str, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self._version = weights, 1
        self._publication = weir.torch.publish(weights, name) if place.rank == 0 else None
        self._subscription = weir.torch.subscribe(weights, name) if place.rank else None
        if self._subscription is not None:
            self._subscription.wait(1, _WAIT_S)

    def publish(self) -> None:
        """See Host."""
        assert self._publication is not None
        self._publication.update()

    def follow(self) -> None:
        """See Host."""
        assert self._subscription is not None
        self._version += 1
        self._subscription.wait(self._version, _WAIT_S)

    def digest(self) -> bytes:
        """See Host."""
        if self._publication is not None:
            return bytes.fromhex(self._publication.digest)
        assert self._subscription is not None
        self._subscription.swap()
        return bytes.fromhex(self._subscription.digest)

    def close(self) -> None:
        """See Host."""
        for each in (self._publication, self._subscription):
            if each is not None:
                each.close()


class OverPeer:
    """Weir's code, brought by a peer; the digest follows when the trainer has it, as with Weir."""

    def __init__(self, place: Place, peer: Peer, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self._peer = weights, peer
        self._source = Source(weights) if place.rank == 0 else None
        self._replica = Replica(weights)
        code, _ = Source(weights).snapshot()
        self._replica.follow(memoryview(code), snapshot=True)

    def publish(self) -> None:
        """See Host."""
        assert self._source is not None
        code = self._source.update()
        sealing = threading.Thread(target=self._source.seal)
        sealing.start()
        self._peer.give(code)
        sealing.join()
        self._peer.give(self._source.digest)

    def follow(self) -> None:
        """See Host."""
        self._replica.follow(self._peer.take(), snapshot=False)
        self._replica.confirm(bytes(self._peer.take()))

    def digest(self) -> bytes:
        """See Host."""
        return (self._source or self._replica).digest or b""

    def close(self) -> None:
        """See Host."""
        self._peer.close()


class Whole:
    """Gloo's broadcast of all tensors, and of their digest, which the trainer computes meanwhile."""

    def __init__(self, group: dist.ProcessGroup, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self._group, self._digest = weights, group, b""

    def publish(self) -> None:
        """See Host."""
        works = self._broadcast()
        self._digest = digest_of(self.weights)
        for work in works:
            work.wait()
        Broadcast(self._group).give(self._digest)

    def follow(self) -> None:
        """See Host."""
        for work in self._broadcast():
            work.wait()
        self._digest = digest_of(self.weights)
        assert bytes(Broadcast(self._group).take()) == self._digest

    def _broadcast(self) -> list[dist.Work]:
        works = [
            dist.broadcast(each.view(torch.uint8), 0, group=self._group, async_op=True)
            for each in self.weights.values()
        ]
        return [work for work in works if work is not None]

    def digest(self) -> bytes:
        """See Host."""
        return self._digest

    def close(self) -> None:
        """See Host."""


def measure(place: Place, spec: Spec) -> dict[Key, list[Turn]]:
    """Measure on one host: the trainer, an engine, or the store."""
    addresses = [""] * place.size
    dist.all_gather_object(addresses, _own_address())
    found: dict[Key, list[Turn]] = {}
    for engines in spec.given.engines:
        group = dist.new_group(list(range(engines + 1)))
        hosts = {name: _host(name, place, engines, group, addresses, spec) for name in spec.given.contenders}
        for share in spec.given.changed:
            for turn, name in itertools.product(range(spec.repeats + 1), spec.given.contenders):
                one = _turn(place, hosts[name], name, share, turn, spec)
                if turn and one is not None:  # the first one warms up
                    found.setdefault((engines, share, name), []).append(one)
        for host in hosts.values():
            if host is not None:
                host.close()
        dist.barrier()
    return found


def _own_address() -> str:
    """Return this host's address on the peers' network."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name is None:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, name.encode().ljust(40, b"\0"))
    return socket.inet_ntoa(answer[20:24])


def _host(
    name: str,
    place: Place,
    engines: int,
    group: dist.ProcessGroup,
    addresses: Sequence[str],
    spec: Spec,
) -> Host | Store | None:
    """Return this host's part; of the host with the store, the store; None: it has none."""
    peer = _peer(name, place, engines + 1, group, addresses)
    if isinstance(peer, Store) and place.rank == place.size - 1:
        return peer
    if place.rank > engines:
        return None
    weights = _weights(spec.values)
    if peer is not None:
        return OverPeer(place, peer, weights)
    return (
        OverWeir(place, f"weights-{spec.values}-{engines}", weights)
        if name == "weir"
        else Whole(group, weights)
    )


def _peer(
    name: str, place: Place, hosts: int, group: dist.ProcessGroup, addresses: Sequence[str]
) -> Peer | None:
    """Return a peer that brings Weir's code; None: it is none."""
    if name == "chain":
        return Chain(place, hosts, addresses)
    if name == "store":
        return Store(place, hosts, addresses)
    return Broadcast(group) if name == "gloo" else None


def _weights(values: int) -> dict[str, torch.Tensor]:
    """Return layers, the same on all hosts."""
    whole = torch.randn(values, generator=torch.Generator().manual_seed(1)).bfloat16()
    return {f"layer {number}": part for number, part in enumerate(whole.tensor_split(_LAYERS))}


def _turn(
    place: Place, host: Host | Store | None, name: str, share: float, turn: int, spec: Spec
) -> Turn | None:
    """Bring one version to all engines; None: this host has no version of its own."""
    link = _Link((_LINK if name == "weir" else _BRIDGED) if spec.shaped and not place.rank else None)
    if host is not None and not isinstance(host, Store) and place.rank == 0:
        move = "any" if share == 1 else spec.given.moves
        for number, tensor in enumerate(host.weights.values()):
            changed(tensor, share, move, 1 + number + _LAYERS * turn)
    sent = link.sent()
    dist.barrier()
    time.sleep(_PAUSE_S)
    before, began = ProcessorTime.now(spec.switches), time.monotonic()
    if isinstance(host, Store):
        for _ in range(2):  # the code, and the digest
            host.keep()
    elif host is not None:
        (host.follow if place.rank else host.publish)()
    ended, own = time.monotonic(), (ProcessorTime.now() - before).own
    dist.barrier()
    used = ProcessorTime.now(spec.switches) - before
    if not place.rank:
        own = used.own  # packets of Weir follow in the background
    version = None if host is None or isinstance(host, Store) else host.digest()
    versions: list[bytes | None] = [None] * place.size
    dist.all_gather_object(versions, version)
    assert len({each for each in versions if each is not None}) == 1, "hosts have different versions"
    if version is None:
        return None
    return Turn(began, ended, own, used.others, used.machine, link.sent() - sent)


class _Link:
    """A shaped interface of this host. name: None: there is none."""

    def __init__(self, name: str | None) -> None:
        self._name, self._interfaces = name, Interfaces(lambda function: function())

    def sent(self) -> int:
        """Return the bytes that it has sent."""
        return 0 if self._name is None else self._interfaces.shaped_bytes(self._name)
