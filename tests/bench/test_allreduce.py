# SPDX-License-Identifier: Apache-2.0
"""The all-reduce benchmark: whose packets take which way, what is counted, and what is shown of it."""

from dataclasses import replace

import pytest

from weir.bench.allreduce_worker import AllreduceSpec, Sample
from weir.bench.collectives.allreduce import (
    Result,
    Setting,
    as_json,
    least_of,
    measure,
    over_links,
    report,
    summarize,
)
from weir.bench.ranks import least_seconds
from weir.netns.cluster import network_cluster

WORKERS, ELEMENTS, RATE = 3, 300_000, "1gbit"
ROUNDS = 2  # one that warms up, one that counts
FULL_FRAME = 1514


@pytest.mark.root
def test_gloo_has_a_bridge_with_offloads_and_weir_the_switch_each_at_its_least_bytes() -> None:
    """The bytes on either link are those that the least time at the line's rate is calculated from."""
    with network_cluster(WORKERS, rate=RATE, bridged=True) as cluster:
        setting = over_links(cluster, RATE)
        spec = AllreduceSpec(ELEMENTS, (1.0,), ROUNDS - 1, switches=setting.switches)
        samples = measure(WORKERS, spec, setting.start)
        find, port = cluster.lab.switch.links.find, cluster.lab.interfaces[0]
        switched, bridged = find(port), find(f"bridge-{port}")
    assert setting.rate is not None
    for link, contender in ((switched, "weir"), (bridged, "gloo")):
        least = (
            ROUNDS
            * least_seconds(ELEMENTS, WORKERS, setting.rate, ring=contender == "gloo")
            * setting.rate
            / 8
        )
        assert 0.95 * least < link.sent_bytes < 1.1 * least, contender
    for link in (switched, bridged):
        assert link.sent_bytes / link.sent > FULL_FRAME  # trains of packets, and of segments
    (weir,), (gloo,) = samples["1.0"]["weir"], samples["1.0"]["gloo"]
    assert weir.switch > gloo.switch  # which only had to wait
    for sample in (weir, gloo):
        assert 0 < sample.worker < sample.machine + 0.1  # in ticks


def result(contender: str, seconds: list[float]) -> Result:
    return Result("200mbit", 1.0, contender, seconds, 0.5, worker=12.3, switch=27.9, machine=184.8)


def test_shares_of_the_line_are_of_what_has_to_travel() -> None:
    """Half of the line's payload rate in twice the least time; sparse tensors need less of Weir's."""
    links = Setting("200mbit", 200_000_000, lambda _rank: ([], {}), ())
    least = least_seconds(1000, 4, links.rate or 0, ring=True)
    assert least == pytest.approx(1.5 * 32_000 / (links.rate or 0) / (1448 / 1514))
    samples = {
        density: {name: [Sample(2 * least, 0.1, 0.2, 0.4)] for name in ("gloo", "weir")}
        for density in ("1.0", "0.1")
    }
    found = {(r.density, r.contender): r for r in summarize(samples, links, 4, 1000)}
    assert found[1.0, "gloo"].of_line == found[0.1, "gloo"].of_line == pytest.approx(0.5)
    assert found[0.1, "weir"].of_line is None
    assert found[1.0, "weir"].worker == pytest.approx(0.1 / 4e-6)
    nowhere = summarize(samples, replace(links, rate=None), 4, 1000)
    assert {each.of_line for each in nowhere} == {None}


@pytest.mark.parametrize(
    ("contender", "workers", "of_whole"), [("weir-16", 4, 2), ("weir-8", 4, 4), ("weir-8", 9, 8 / 3)]
)
def test_packed_values_need_less_of_the_line(contender: str, workers: int, of_whole: float) -> None:
    whole = least_of("weir", 1000, workers, 10**9)
    assert whole / least_of(contender, 1000, workers, 10**9) == pytest.approx(of_whole)


def test_ratios_shares_and_processor_time_stand_side_by_side_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    results = [result("gloo", [3.0, 3.2, 3.4]), result("weir", [1.5, 1.6, 1.7])]
    report("All-reduce", results, [])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [cell.strip() for line in lines if "Weir" in line and "│" in line for cell in line.split("│")]
    assert cells[1:-1] == ["200mbit 100% Weir", "1,600 ±6%", "50%", "2.00", "12.3", "27.9", "184.8"]
    assert as_json(results[1], results).items() >= {"x_gloo": 2.0, "of_line": 0.5, "switch": 27.9}.items()
