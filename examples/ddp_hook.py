# SPDX-License-Identifier: Apache-2.0
"""Sparsified gradients with error feedback: DDP's communication hook, saved and restored with the model.

torchrun --nproc-per-node 4 examples/ddp_hook.py --method dfs --density 0.05
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch


def make(
    method: str, density: float
) -> tuple[DistributedDataParallel, torch.optim.Optimizer, weir.torch.HookState]:
    """Return a model whose gradients go through the hook."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    )
    state = weir.torch.HookState(model, sparsifier=method, density=density, block=32)
    model.register_comm_hook(state, weir.torch.hook)
    return model, torch.optim.SGD(model.parameters(), lr=0.02), state


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    """Return some steps on this rank's data; returns the last loss."""
    loss = torch.tensor(float("nan"))
    for step in steps:
        inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(step * 1000 + dist.get_rank()))
        loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :8].sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    """Run on every rank: trains, saves, restores into new objects, trains on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="dfs")
    parser.add_argument("--density", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    dist.init_process_group("weir")
    try:
        rank = dist.get_rank()
        model, optimizer, state = make(options.method, options.density)
        train(model, optimizer, range(options.steps // 2))

        with tempfile.TemporaryDirectory() as directory:
            # The residuals are this rank's own: every rank saves its state, rank 0 would do for the model.
            path = Path(directory) / f"checkpoint-{rank}.pt"
            torch.save(
                {"model": model.state_dict(), "sgd": optimizer.state_dict(), "hook": state.state_dict()}, path
            )
            model, optimizer, state = make(options.method, options.density)
            saved = torch.load(path)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["sgd"])
            state.load_state_dict(saved["hook"])

        loss = train(model, optimizer, range(options.steps // 2, options.steps))
        stats = state.last_step
        assert stats is not None
        print(
            f"rank {rank}: step {stats.step}, loss {loss:.4f}, sent {stats.density:.1%} of the gradient",
            flush=True,
        )
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
