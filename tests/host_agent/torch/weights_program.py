# SPDX-License-Identifier: Apache-2.0
"""A trainer or an engine in a process of its own, which hears what to do: for test_weights."""

import os
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection

import torch

import weir.torch


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(100, 300).bfloat16(), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 100).half()
    )


def change(model: torch.nn.Module) -> None:
    """Change one value in a hundred by a unit in the last place."""
    for tensor in model.state_dict().values():
        integers = tensor.view(-1).view(
            {2: torch.int16, 4: torch.int32, 8: torch.int32}[tensor.element_size()]
        )
        integers[torch.rand(integers.numel()) < 0.01] += 1


def trainer(line: Connection, seed: int, token: str) -> None:
    """Publish; for each number that comes, make that many versions."""
    model = network(seed)
    with weir.torch.publish(model, "policy", token=token) as publication:
        line.send({"version": 1, "digest": publication.digest})
        for number in iter(line.recv, None):
            for _ in range(number):
                change(model)
                publication.update()
            assert publication.digest == weir.torch.weights_digest(model)
            line.send({"version": publication.version, "digest": publication.digest})


def engine(line: Connection, seed: int, token: str) -> None:
    """Subscribe; for each digest that comes, wait until this process has that version."""
    model = network(1000 + seed)
    with weir.torch.subscribe(model, "policy", token=token) as subscription:
        for wanted in iter(line.recv, None):
            while subscription.digest != wanted:
                time.sleep(0.01)
                if subscription.swap():
                    assert subscription.digest == weir.torch.weights_digest(model)
            line.send({"version": subscription.version, "digest": subscription.digest})


def run(line: Connection, environment: Mapping[str, str], role: str, rank: int, token: str) -> None:
    """Be a trainer or an engine, until None comes; an error is the last that is sent."""
    torch.set_num_threads(1)
    os.environ.update(environment)
    try:
        {"trainer": trainer, "engine": engine}[role](line, rank, token)
    except Exception as error:
        line.send({"error": str(error)})
