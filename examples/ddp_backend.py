# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel, unmodified, on the "weir" backend.

    torchrun --nproc-per-node 4 examples/ddp_backend.py

With WEIR_CONTROLLER unset and all ranks on one machine, rank 0 starts a soft switch and a controller for
them. Every rank ends with bit-identical parameters.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch  # noqa: F401  registers the backend


def teacher(inputs: torch.Tensor) -> torch.Tensor:
    """Return the function to learn."""
    return torch.sin(inputs).sum(dim=1, keepdim=True)


def train(steps: int) -> tuple[float, float, torch.nn.Module]:
    """Train a small network; returns its first and its last loss on this rank's data, and the network."""
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same start everywhere; DDP broadcasts rank 0's anyway
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(1 + rank)  # other data on every rank
    first = last = float("nan")
    for step in range(steps):
        inputs = torch.randn(64, 4, generator=data)
        loss = torch.nn.functional.mse_loss(model(inputs), teacher(inputs))
        optimizer.zero_grad()
        loss.backward()  # the gradients are summed by the switch
        optimizer.step()
        last = loss.item()
        first = last if step == 0 else first
    return first, last, model


def digest(model: torch.nn.Module) -> str:
    """Return a short fingerprint of the parameters' bits."""
    bits = torch.cat([p.detach().reshape(-1).view(torch.int32).long() for p in model.parameters()])
    return f"{int((bits * torch.arange(1, len(bits) + 1)).sum()) & 0xFFFFFFFF:08x}"


def main() -> None:
    """Run on every rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    dist.init_process_group("weir")
    try:
        first, last, model = train(steps)
        print(
            f"rank {dist.get_rank()}: loss {first:.3f} -> {last:.3f}, parameters {digest(model)}", flush=True
        )
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
