# SPDX-License-Identifier: Apache-2.0
"""The all-reduce benchmark: whose packets take which way, what is counted, and what is shown of it."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from weir.bench.collectives.allreduce import _batches, least_of, measure, row
from weir.bench.collectives.samples import Parameters, Sample, Spec
from weir.bench.peers import CONTENDERS
from weir.bench.rank import Place
from weir.bench.ranks import Links, least_seconds, over_links, run_ranks
from weir.bench.report import cells
from weir.bench.results import Column, Table
from weir.netns.cluster import network_cluster
from weir.netns.lab import cable_ends
from weir.network import NetworkSpec, parse_shape

WORKERS, ELEMENTS, RATE = 3, 300_000, "1gbit"
ROUNDS = 2  # one that warms up, one that counts
FULL_FRAME = 1514
LINKS = Links("200mbit", 4, 200_000_000, lambda _rank: ([], {}), ())


@pytest.mark.root
def test_gloo_has_a_bridge_with_offloads_and_weir_the_switch_each_at_its_least_bytes() -> None:
    """The bytes on either link are those that the least time at the line's rate is calculated from."""
    with network_cluster(WORKERS, rate=RATE, bridged=True) as cluster:
        links = over_links(cluster, WORKERS, RATE, RATE)
        spec = Spec(ELEMENTS, Parameters(densities=(1.0,)), ROUNDS - 1, links.switches)
        ranks = run_ranks(measure, spec, links)
        find, port = cluster.lab.switch.links.find, cluster.lab.interfaces[0]
        switched, bridged = find(port), find(f"bridge-{port}")
        batches = _batches(links)  # while the links are there
    assert links.rate is not None
    for link, ring in ((switched, False), (bridged, True)):
        least = ROUNDS * least_seconds(ELEMENTS, WORKERS, links.rate, ring=ring) * links.rate / 8
        assert 0.95 * least < link.sent_bytes < 1.1 * least, ring
    for link in (switched, bridged):
        assert link.sent_bytes / link.sent > FULL_FRAME  # batches of packets, and of segments
    assert batches["frames at a time"] >= 1
    (weir,), (gloo,) = (ranks[0].samples[1.0][name] for name in ("weir", "gloo"))
    assert weir.switch > gloo.switch  # which only had to wait
    for sample in (weir, gloo):
        assert 0 < sample.worker < sample.machine + 0.1  # in ticks


@pytest.mark.root
def test_sums_cross_racks_in_batches_and_half_of_them_over_each_spine() -> None:
    with network_cluster(
        4, rate=RATE, network=NetworkSpec(parse_shape("leaf-spine-2x2")), bridged=True
    ) as cluster:
        links = over_links(cluster, 4, RATE, RATE)
        run_ranks(reduced, ELEMENTS, links)
        find = cluster.lab.switch.links.find
        cables = [find(name) for cable in cluster.lab.plan.cables for name in cable_ends(cable)]
    assert links.rate is not None
    half = least_seconds(ELEMENTS, 4, links.rate, ring=False) * links.rate / 8 / 2
    for cable in cables:
        assert 0.95 * half < cable.sent_bytes < 1.2 * half
        assert cable.sent_bytes / cable.sent > FULL_FRAME


def reduced(place: Place, elements: int) -> None:
    """Sum a tensor over Weir, on one rank."""
    data = torch.ones(elements)
    dist.all_reduce(data, group=place.weir())
    assert data.eq(place.size).all()


def test_a_peer_without_its_offloads_fails_the_run() -> None:
    off = replace(LINKS, gloo_frame=lambda: 1100.0)
    gloo = replace(row("gloo", [[Sample(1, 1, 1, 1)]], 1000, {}, None), counts=_batches(off))
    assert Table("", (Column("ms"),), (gloo,)).idle == ["Gloo: no frames at a time"]
    assert _batches(LINKS) == {}


def test_the_slowest_rank_counts_and_half_the_lines_rate_is_half_of_it() -> None:
    """Half of the line's payload rate in twice the least time, with ratios and processor time beside it."""
    least = least_seconds(1000, 4, 200_000_000, ring=True)
    assert least == pytest.approx(1.5 * 32_000 / 200_000_000 / (1448 / 1514))
    slow = [Sample(2 * least, 0.1, 0.2, 0.4), Sample(2 * least, 0.1, 0.2, 0.4)]
    quick = [Sample(least, 0.3, 9.0, 9.0), Sample(least, 0.3, 9.0, 9.0)]
    setting = {"links": "200mbit", "density": "100%"}
    gloo = row("gloo", [slow, quick], 1000, setting, least_of(CONTENDERS["gloo"], 1000, LINKS, 1.0))
    weir = row("weir", [quick, quick], 1000, setting, None)
    assert gloo.values["worker"] == [pytest.approx(0.2 / 4e-6)] * 2
    assert gloo.values["switch"] == [pytest.approx(0.2 / 4e-6)] * 2
    table = Table("", (Column("ms"), Column("worker")), (gloo, weir), ("Gloo",), floor="of the least")
    assert table.of_floor(gloo) == pytest.approx(0.5)
    assert table.gain(weir, table.beside(weir, "Gloo")) == pytest.approx(2)
    heads, rows = cells(table)
    assert heads == ["", "ms", "x Gloo", "of the least", "worker"]
    assert [cells[0] for cells in rows] == ["200mbit, 100%, Gloo", "200mbit, 100%, Weir"]
    assert rows[0][2:4] == ["1.00", "50%"] and rows[1][2:4] == ["2.00", "–"]


def test_a_share_of_the_line_is_of_what_has_to_travel() -> None:
    """Gloo does not look at the values; sparse tensors need less of Weir's line, which is not calculated."""
    gloo, weir = CONTENDERS["gloo"], CONTENDERS["weir"]
    assert least_of(gloo, 1000, LINKS, 0.1) == least_of(gloo, 1000, LINKS, 1.0)
    assert least_of(weir, 1000, LINKS, 0.1) is None
    assert least_of(weir, 1000, replace(LINKS, rate=None), 1.0) is None


@pytest.mark.parametrize(
    ("contender", "workers", "of_whole"), [("weir-16", 4, 2), ("weir-8", 4, 4), ("weir-8", 9, 8 / 3)]
)
def test_packed_values_need_less_of_the_line(contender: str, workers: int, of_whole: float) -> None:
    links = replace(LINKS, workers=workers)
    whole, packed = (least_of(CONTENDERS[name], 1000, links, 1.0) for name in ("weir", contender))
    assert whole is not None and packed is not None
    assert whole / packed == pytest.approx(of_whole)
