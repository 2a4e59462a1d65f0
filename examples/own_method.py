# SPDX-License-Identifier: Apache-2.0
"""A method of one's own, from add-a-method.md: all workers send the same window of each parameter.

torchrun --nproc-per-node 4 examples/own_method.py --density 0.1
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch


# --- the method
@weir.torch.register_sparsifier
class Window(weir.torch.Sparsifier):
    """Sends one window after another. What an element is worth is never asked: choosing costs nothing."""

    name = "window"
    summary = "A window of each parameter that moves on with every step; all workers send the same."

    def encode(self, gradient: torch.Tensor, span: weir.torch.Span) -> torch.Tensor:
        """Return the elements in this step's window, and whatever is not finite."""
        windows = round(1 / self.density)
        place = torch.arange(span.start, span.start + span.length, device=gradient.device) // 8
        chosen = place % windows == self.step % windows
        return torch.where(chosen | ~gradient.isfinite(), gradient, 0.0)


# --- its use


def main() -> None:
    """Run on every rank: trains, and says what was sent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    dist.init_process_group("weir")
    try:
        rank = dist.get_rank()
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(512, 1, bias=False))
        state = weir.torch.HookState(model, sparsifier="window", density=options.density)
        model.register_comm_hook(state, weir.torch.hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(options.steps):
            inputs = torch.randn(64, 512, generator=generator) / 512**0.5
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        stats = state.last_step
        assert stats is not None
        print(f"rank {rank}: loss {loss.item():.4f}, sent {stats.density:.1%} of the gradient", flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
