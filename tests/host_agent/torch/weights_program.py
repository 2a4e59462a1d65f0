# SPDX-License-Identifier: Apache-2.0
"""A trainer or an engine, told by lines on its input what to do: for test_weights."""

import json
import sys
import time

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


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def trainer(seed: int, token: str) -> None:
    model = network(seed)
    with weir.torch.publish(model, "policy", token=token) as publication:
        say(version=1, digest=publication.digest)
        for line in sys.stdin:
            for _ in range(int(line)):
                change(model)
                publication.update()
            assert publication.digest == weir.torch.weights_digest(model)
            say(version=publication.version, digest=publication.digest, stats=publication.stats.packets)


def engine(seed: int, token: str) -> None:
    model = network(1000 + seed)
    with weir.torch.subscribe(model, "policy", token=token) as subscription:
        for line in sys.stdin:
            wanted = line.strip()
            while subscription.digest != wanted:
                time.sleep(0.01)
                if subscription.swap():
                    assert subscription.digest == weir.torch.weights_digest(model)
            say(version=subscription.version, digest=subscription.digest)


if __name__ == "__main__":
    {"trainer": trainer, "engine": engine}[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
