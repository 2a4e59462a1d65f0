# SPDX-License-Identifier: Apache-2.0
"""torchao's 8-bit AdamW under FSDP2 over Gloo and over Weir, and its float8 all-gather over Weir.

Gloo knows no float8.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp as precompute_scales

from tests.frameworks import sections
from tests.frameworks.comparing import compare


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 128, bias=False) for _ in range(2)]
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(16, 128, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([one.full_tensor().flatten() for one in model.parameters()])  # type: ignore[attr-defined]


def float8() -> torch.Tensor:
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    model = convert_to_float8_training(net(), config=config)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    trained = steps(model, torch.optim.SGD(model.parameters(), 0.1))
    precompute_scales(model)
    return trained


def train(backend: str) -> torch.Tensor:
    model = net()
    optimizer = sections.run("torchao", backend, model=model)["optimizer"]
    trained = steps(model, optimizer)
    if backend == "weir":
        fresh = net()
        fully_shard(fresh)
        expected = steps(fresh, torch.optim.SGD(fresh.parameters(), 0.1))
        torch.testing.assert_close(float8(), expected, rtol=0.1, atol=0.01)
    return trained


compare(train)
