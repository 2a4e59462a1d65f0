# SPDX-License-Identifier: Apache-2.0
"""MPI peers: where their ranks run, and by which network they find one another."""

from pathlib import Path

import pytest

from weir.bench.case import Run
from weir.bench.collectives import mpi
from weir.bench.collectives.allreduce import _in_turn, _mpi_rows
from weir.bench.collectives.samples import Parameters, Spec
from weir.bench.ranks import Links, least_seconds, over_links
from weir.netns.cluster import network_cluster

WORKERS, ELEMENTS, RATE = 3, 300_000, "1gbit"
SPEC = Spec(ELEMENTS, Parameters(densities=(1.0,), contenders=("gloo", "weir", *mpi.LIBRARIES)), 1, ())


def links(rate: int | None) -> Links:
    def start(rank: int) -> tuple[list[str], dict[str, str]]:
        return ["enter", str(rank)], {"GLOO_SOCKET_IFNAME": "eth1"}

    return Links("test", WORKERS, rate, start, ())


@pytest.mark.parametrize("name", mpi.LIBRARIES)
def test_each_rank_enters_its_hosts_namespace_and_the_launcher_the_first_ones(name: str) -> None:
    command, environment = mpi._launch(mpi.LIBRARIES[name], links(10**9), Path("job"))
    entered = [command[at + 1] for at, word in enumerate(command) if word == "enter"]
    assert entered == ["0", "0", "1", "2"]
    assert command.count(":") == WORKERS - 1
    assert "eth1" in environment.values()
    _, shared = mpi._launch(mpi.LIBRARIES[name], links(None), Path("job"))
    assert "eth1" not in shared.values()


def test_without_the_wheel_there_is_no_row_but_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "why_not", lambda _name: "no wheel")
    said: list[str] = []
    assert not list(_mpi_rows(SPEC, links(10**9), "cpu", Run(1, (), say=said.append)))
    assert said == ["test: MPICH not measured: no wheel", "test: Open MPI not measured: no wheel"]
    assert _in_turn(SPEC) == ["gloo", "weir"]


@pytest.mark.root
@pytest.mark.parametrize("name", mpi.LIBRARIES)
def test_every_value_crosses_the_bridge_as_often_as_in_a_ring(name: str) -> None:
    """No memory is shared, and no byte takes Weir's links: else it is no peer."""
    if reason := mpi.why_not(name):
        pytest.skip(reason)
    with network_cluster(WORKERS, rate=RATE, bridged=True) as cluster:
        over = over_links(cluster, WORKERS, RATE, RATE)
        ranks = mpi.measure(name, SPEC, over, limit_s=120)
        links, ports = cluster.lab.switch.links, cluster.lab.interfaces
        bridged, switched = (
            sum(links.find(f"{kind}{port}").sent_bytes for port in ports) for kind in ("bridge-", "")
        )
    assert over.rate is not None
    assert [len(rank[1.0]) for rank in ranks] == [SPEC.repeats] * WORKERS
    rounds = SPEC.repeats + 1  # one that warms up
    least = WORKERS * rounds * least_seconds(ELEMENTS, WORKERS, over.rate, ring=True) * over.rate / 8
    assert 0.95 * least < bridged
    assert switched < 0.01 * least
