# SPDX-License-Identifier: Apache-2.0
"""Two workers of Ray Train over Weir, without an import of it, beside the same training in one process."""

from pathlib import Path
from typing import Any

import ray
import torch

from tests.frameworks import sections

STEPS = 4


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def alone() -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        model(torch.cat([batch(0, step), batch(1, step)])).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def loop(config: dict[str, Any]) -> None:
    import torch.distributed as dist
    from ray.train.torch import prepare_model

    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        model(batch(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert dist.get_backend() == "weir"
    trained = torch.cat([one.detach().flatten() for one in model.parameters()])
    torch.save(trained, Path(config["folder"]) / f"{dist.get_rank()}.pt")


if __name__ == "__main__":
    folder = Path.cwd()
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100_000_000)
    lines = sections.run("Ray Train", "weir", loop=lambda: loop({"folder": str(folder)}))
    lines["trainer"].fit()
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone(), rtol=1e-4, atol=1e-6)
    print("trained over weir", flush=True)
