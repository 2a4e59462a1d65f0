# SPDX-License-Identifier: Apache-2.0
"""Who is missing, or is not where its name says, and why: in the words of whoever made the group."""

import json
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.agent_service import waiting
from weir.agent_service.client import Endpoint, Membership
from weir.cluster import LocalCluster
from weir.host_agent.parameter_server.routing import ParameterInfo
from weir.host_agent.parameter_server.terms import OptimizerSpec, Terms
from weir.host_agent.torch import rendezvous
from weir.host_agent.torch.link_choice import bind_udp, choose_port
from weir.host_agent.torch.parameter_server.job_group import members_of
from weir.host_agent.torch.rendezvous import WHOLE, Members, RendezvousError

SHORT = timedelta(seconds=0.5)
HOSTS = 2


# ---- a machine that is not the host of its name


def membership(ip: str) -> Membership:
    return Membership(
        job_id=7,
        job="digits",
        rank=0,
        size=1,
        slot_count=8,
        aggregation=Endpoint("02:00:00:00:00:fe", "127.0.0.1", 9347),
        host=Endpoint("02:00:00:00:00:01", ip, 9347),
        host_name="h2",
        switch_name="s1",
        switch_port=2,
        shm_dir=None,
        lease_s=1.0,
        fill=False,
        paths=(0,),
    )


@pytest.mark.parametrize("switch", ["127.0.0.1", "255.255.255.255"])
def test_a_machine_without_its_hosts_address_is_refused(switch: str) -> None:
    there = membership("192.0.2.7")
    there = replace(there, aggregation=replace(there.aggregation, ip=switch))
    udp = bind_udp("udp")
    assert udp is not None
    with pytest.raises(
        ValueError, match=r"not host 'h2', which has the address 192\.0\.2\.7 .* Set WEIR_HOST"
    ) as caught:
        choose_port(there, "udp", udp)
    udp.close()
    came = "would come from 127.0.0.1" if switch == "127.0.0.1" else "no route to the switch (255.255.255.255"
    assert came in str(caught.value)


def test_a_machine_with_its_hosts_address_is_taken() -> None:
    choose_port(membership("127.0.0.1"), "udp", bind_udp("udp")).release()


def joined() -> str:
    return "joined"


def test_the_others_learn_which_machine_is_not_its_host(cluster: LocalCluster) -> None:
    """The addresses of a local cluster's hosts are no interface's."""

    def environment(rank: int) -> dict[str, str]:
        return {**cluster.environment(rank), "WEIR_LINK": "udp" if rank else "shm", "WEIR_LOCAL": "off"}

    def run() -> list[str]:
        with World(2, environment, timeout_s=20) as world:
            world.start(reduced)
            return [str(world.outcome(rank)) for rank in range(2)]

    first, second = run()
    assert "this machine is not host 'h2', which has the address 10.0.0.2" in second
    assert "rank 1 (h2) gave up: this machine is not host 'h2'" in first


def reduced() -> None:
    dist.barrier()


# ---- ranks and servers that do not come


def missing(store: dist.Store, rank: int, size: int, members: Members) -> str:
    with pytest.raises(RendezvousError) as caught:
        rendezvous.agree(store, list(range(size)), rank, "group", SHORT, weir.LocalCluster, members=members)
    return str(caught.value)


def introduction(wanted: str) -> str:
    """Return the words of a rank of another machine that wants this group."""
    return json.dumps(asdict(rendezvous.Introduction("m b", wanted, "", {})))


def test_a_rank_that_holds_the_store_may_wait_for_the_others() -> None:
    """It does where torch made the store, which it cannot tell; where the program did, it may be missing."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = missing(store, 1, 3, Members(WHOLE, remedy="were 3 processes started?"))
    assert said == (
        "of 3 ranks these did not come within 0.5 s: rank 0 of 3 (it may be waiting for the others), "
        "rank 2 of 3; were 3 processes started?"
    )
    assert "0.5 s: rank 0 of 2; " in missing(store, 1, 2, Members(WHOLE))  # for whom would it wait?


def test_a_rank_that_holds_the_store_may_miss_a_further_group() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert "rank 0 of 3, rank 2 of 3; do they run?" in missing(store, 1, 3, Members())


def test_torchruns_store_says_nothing_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert "rank 0 of 3, rank 2 of 3" in missing(store, 1, 3, Members(WHOLE))


def test_a_server_that_does_not_come_is_called_a_server(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_S", 0.1)
    terms = Terms(2, 2, (ParameterInfo("weight", (3,)),), OptimizerSpec("SGD", ({},)))
    store = dist.HashStore()
    store.set("weir/rendezvous-1/rank/1", introduction("parameter_server([0, 1, 2, 3])"))
    store.set("weir/rendezvous-1/rank/2", introduction("parameter_server([0, 1, 2, 3])"))
    said = missing(store, 0, 4, members_of(terms))
    assert "did not come within 0.5 s: server 1 (rank 3); " in said and "`weir server`" in said
    assert "still waiting for server 1 (rank 3) to come" in caplog.text


def test_a_worker_that_does_not_come_is_called_a_worker() -> None:
    terms = Terms(2, 1, (ParameterInfo("weight", (3,)),), OptimizerSpec("SGD", ({},)))
    assert "these did not come within 0.5 s: worker 0, worker 1; " in missing(
        dist.HashStore(), 2, 3, members_of(terms)
    )


# ---- ranks that want different groups


@pytest.mark.parametrize("made", [WHOLE, "new_group", "parameter_server"])
def test_a_mismatch_names_what_was_called(made: str) -> None:
    store = dist.HashStore()
    store.set("weir/rendezvous-1/rank/1", introduction(f"{made}([0, 1, 2])"))
    said = missing(store, 0, 2, Members(made))
    assert f"rank 0 called {made}([0, 1]); rank 1 called {made}([0, 1, 2])" in said


def test_world_sizes_that_differ(tmp_path: Path) -> None:
    """Two ranks started by hand, with different numbers of ranks."""
    del tmp_path
    with World(2, timeout_s=10, sizes=[2, 3]) as world:
        world.start(joined)
        for rank in range(2):
            said = str(world.outcome(rank))
            assert "init_process_group([0, 1])" in said and "init_process_group([0, 1, 2])" in said
            assert "new_group" not in said
