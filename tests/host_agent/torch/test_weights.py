# SPDX-License-Identifier: Apache-2.0
"""Weights over a real switch, between real processes: engines equal the trainer whatever happens to it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weir
import weir.torch
from weir.cluster import LocalCluster
from weir.network import NetworkSpec

PROGRAM = Path(__file__).with_name("weights_program.py")


class Process:
    """A trainer or an engine."""

    def __init__(self, cluster: LocalCluster, rank: int, role: str, token: str = "secret") -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(PROGRAM), role, str(rank), token],
            env={**os.environ, **cluster.environment(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None and self._child.stderr is not None
        line = self._child.stdout.readline()
        assert line, self._child.stderr.read()
        return dict(json.loads(line))

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()

    def end(self) -> str:
        """Let it end as it should; return its messages."""
        said = self._child.communicate(timeout=60)[1]
        assert self._child.returncode == 0, said
        return said

    def failure(self) -> str:
        """Return the messages of a process that fails."""
        said = self._child.communicate(timeout=60)[1]
        assert self._child.returncode
        return said


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
        trainer.tell("3")
        assert all_get(engines, trainer.hear()["digest"]) == [version] * 2
    engines.append(late := Process(cluster, 3, "engine"))
    trainer.tell("1")
    all_get(engines, trainer.hear()["digest"])
    engines.pop(1).kill()
    trainer.kill()
    successor = Process(cluster, 0, "trainer")
    assert all_get([early, late], successor.hear()["digest"]) == [1, 1]
    successor.tell("2")  # and then it leaves as it should
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
        assert "exists with another token" in stranger.failure()
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
        ours = [{"w": torch.zeros(2_000_000, dtype=torch.bfloat16)} for _ in range(9)]
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
