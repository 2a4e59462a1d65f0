# SPDX-License-Identifier: Apache-2.0
"""A loop of Accelerate's over Gloo and over Weir; and what it says to a backend that it does not know."""

import os

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import gather_object

from tests.frameworks import sections
from tests.frameworks.comparing import compare


def reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def loop(accelerator: Accelerator) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    samples = torch.randn(22, 8, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        seen += accelerator.gather_for_metrics(batch).shape[0]
    assert seen == 22
    assert gather_object([accelerator.process_index]) == [0, 1]
    accelerator.wait_for_everyone()
    mean = accelerator.reduce(loss.detach(), "mean")
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
    return torch.cat([mean.reshape(1), *(one.detach().flatten() for one in whole)])


def train(backend: str) -> torch.Tensor:
    reset()
    ddp = loop(sections.run("Accelerate", backend)["accelerator"])
    reset()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True)
    return torch.cat([ddp, loop(Accelerator(cpu=True, fsdp_plugin=plugin))])


os.environ["ACCELERATE_USE_CPU"] = "true"
try:
    Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="weir")])
    raise AssertionError("Accelerate takes the backend now: say so in docs/guides/frameworks.md")
except ValueError as error:
    assert "Your assigned backend weir is not available, please use gloo" in str(error)
assert not dist.is_initialized()
compare(train)
