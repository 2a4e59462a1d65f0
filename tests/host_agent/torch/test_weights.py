# SPDX-License-Identifier: Apache-2.0
"""Weights over a real switch, between real processes: engines equal the trainer whatever happens to it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import weir
import weir.torch
from tests.harness.forked import FORKED
from tests.host_agent.torch import weights_program
from weir.cluster import LocalCluster
from weir.network import NetworkSpec

TIMEOUT_S = 60.0


class Process:
    """A trainer or an engine."""

    def __init__(self, cluster: LocalCluster, rank: int, role: str, token: str = "secret") -> None:
        self._line, theirs = FORKED.Pipe()
        self._child = FORKED.Process(
            target=weights_program.run, args=(theirs, cluster.environment(rank), role, rank, token)
        )
        self._child.start()
        theirs.close()

    def tell(self, what: object) -> None:
        self._line.send(what)

    def hear(self) -> dict[str, Any]:
        assert self._line.poll(TIMEOUT_S), "it says nothing"
        return dict(self._line.recv())

    def kill(self) -> None:
        self._child.kill()
        self._child.join()

    def end(self) -> None:
        """Let it end as it should."""
        self.tell(None)
        self._child.join(TIMEOUT_S)
        assert self._child.exitcode == 0


@pytest.fixture(params=[pytest.param(0.0, marks=pytest.mark.long), 0.02], ids=["clean", "lossy"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with weir.local_cluster(4, network=NetworkSpec(loss=request.param)) as running:
        yield running


def all_get(engines: list[Process], digest: str) -> list[int]:
    """Wait until all engines have this version; return its number on each."""
    for each in engines:
        each.tell(digest)
    said = [each.hear() for each in engines]
    assert [one["digest"] for one in said] == [digest] * len(engines)
    return [one["version"] for one in said]


def test_engines_equal_the_trainer_over_joins_leaves_and_its_death(cluster: LocalCluster) -> None:
    early = Process(cluster, 1, "engine")  # before there is a trainer
    trainer = Process(cluster, 0, "trainer")
    assert all_get([early], trainer.hear()["digest"]) == [1]
    engines = [early, Process(cluster, 2, "engine")]
    for version in (4, 7):
        trainer.tell(3)
        assert all_get(engines, trainer.hear()["digest"]) == [version] * 2
    engines.append(late := Process(cluster, 3, "engine"))
    trainer.tell(1)
    all_get(engines, trainer.hear()["digest"])
    engines.pop(1).kill()
    trainer.kill()
    successor = Process(cluster, 0, "trainer")
    assert all_get([early, late], successor.hear()["digest"]) == [1, 1]
    successor.tell(2)  # and then it leaves as it should
    assert all_get([early, late], successor.hear()["digest"]) == [3, 3]
    successor.end()
    last = Process(cluster, 0, "trainer")
    assert all_get([early, late], last.hear()["digest"]) == [1, 1]
    for each in (early, late, last):
        each.end()


def test_who_does_not_know_the_token_is_refused() -> None:
    with weir.local_cluster(2) as cluster:
        trainer = Process(cluster, 0, "trainer")
        trainer.hear()
        stranger = Process(cluster, 1, "engine", token="guess")
        stranger.tell("any")
        assert "exists with another token" in stranger.hear()["error"]
        trainer.end()


def quiet_bytes(publication: weir.torch.Publication, subscriptions: list[weir.torch.Subscription]) -> int:
    """Publish a version; return the bytes that the trainer sent until all have it."""
    before = publication.stats.payload_bytes
    version = publication.update()
    for each in subscriptions:
        assert each.wait(version) == version
    return publication.stats.payload_bytes - before


def test_the_trainer_sends_as_much_to_eight_engines_as_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_LINK", "shm")
    sent = {}
    with weir.local_cluster(9) as cluster:
        ours = [{"w": torch.zeros(500_000, dtype=torch.bfloat16)} for _ in range(9)]
        hosts = [host.name for host in cluster.plan.workers]
        with contextlib.ExitStack() as stack:
            place = {"controller": cluster.controller}
            publication = stack.enter_context(weir.torch.publish(ours[0], "p", host=hosts[0], **place))
            subscriptions = []
            for host, own in zip(hosts[1:], ours[1:], strict=True):
                made = weir.torch.subscribe(own, "p", host=host, **place)
                subscriptions.append(stack.enter_context(made))
                made.wait(publication.version)
                if len(subscriptions) in (1, 2, 4, 8):
                    ours[0]["w"].view(torch.int16)[len(subscriptions) :: 20] += 1
                    sent[len(subscriptions)] = quiet_bytes(publication, subscriptions)
            for own, each in zip(ours[1:], subscriptions, strict=True):
                assert each.swap()
                assert each.digest == weir.torch.weights_digest(own) == publication.digest
    assert all(abs(sent[number] / sent[1] - 1) < 0.03 for number in (2, 4, 8)), sent
