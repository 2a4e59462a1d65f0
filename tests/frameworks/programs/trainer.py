# SPDX-License-Identifier: Apache-2.0
"""Transformers' Trainer trains, evaluates and saves a small GPT-2 over Gloo and over Weir."""

from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import GPT2Config, GPT2LMHeadModel, Trainer

from tests.frameworks import sections
from tests.frameworks.comparing import compare


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def train(backend: str) -> torch.Tensor:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    arguments = sections.run("Transformers' Trainer", backend)["arguments"]
    torch.manual_seed(0)
    size = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size))
    trainer = Trainer(model=model, args=arguments, train_dataset=Samples(), eval_dataset=Samples())
    trainer.train()
    assert type(trainer.model_wrapped).__name__ == "DistributedDataParallel"
    loss = torch.tensor([trainer.evaluate()["eval_loss"]])
    return torch.cat([loss, *(one.detach().flatten() for one in model.parameters())])


compare(train)
