# SPDX-License-Identifier: Apache-2.0
"""Lightning trains, validates and saves over Gloo and over Weir."""

import lightning
import torch

from tests.frameworks import sections
from tests.frameworks.comparing import compare


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], _number: int) -> None:
        loss = self.loss(batch)
        self.log("gathered", self.all_gather(loss).mean())
        self.log("averaged", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(backend: str) -> torch.Tensor:
    trainer = sections.run("Lightning", backend)["trainer"]
    model = Model()
    generator = torch.Generator().manual_seed(0)
    samples = torch.utils.data.TensorDataset(
        torch.randn(32, 16, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    )
    loader = torch.utils.data.DataLoader(samples, batch_size=8)
    trainer.fit(model, loader, loader)
    (losses,) = trainer.validate(model, loader, verbose=False)
    parameters = torch.cat([one.flatten() for one in model.parameters()])
    return torch.cat([parameters, torch.tensor([losses["gathered"], losses["averaged"]])])


compare(train)
