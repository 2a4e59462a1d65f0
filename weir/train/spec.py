# SPDX-License-Identifier: Apache-2.0
"""The settings that the launcher hands a worker on its command line."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from weir.train.config import TrainConfig

BackendName = Literal["weir", "gloo"]


class WorkerSpec(BaseModel):
    """One run, as its workers need to know it.

    ``init_method``: torch.distributed's, where ranks find each other. ``replicas``: who compares the
    parameters of all ranks after each step: the launcher, which hears every rank, or the group itself,
    when each rank has a launcher of its own. ``save``: where checkpoints go. ``resume``: where that of an
    earlier run is.
    """

    model_config = ConfigDict(frozen=True)

    config: TrainConfig
    backend: BackendName
    init_method: str
    replicas: Literal["launcher", "group"] = "launcher"
    save: Path | None = None
    resume: Path | None = None
