# SPDX-License-Identifier: Apache-2.0
"""Training of GPT-2 by DDP, its gradients summed in one of many ways: the same seed, the same text."""

import contextlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from weir.bench.gpu_model import SHAPES, Gpt, batches, read_tokens
from weir.bench.gpu_place import Place

_ONE_BUCKET_MB: Final = 4096
_DENSE_STEPS: Final = 2  # of PowerSGD, which takes no fewer; they belong to those that warm up


@dataclass(frozen=True)
class Way:
    """A way to sum gradients.

    Attributes:
        words: in tables.
        group: "gloo", "weir", "local": Weir's ranks reduce in the host's memory; "none": nothing is summed.
        fp16: with torch's hook that halves floats.
        rank: of torch's PowerSGD hook; 0: without it.
        hook: options of Weir's hook but the density; None: without it.
        one_bucket: all gradients are exchanged at once, after the backward pass.
    """

    words: str
    group: str
    fp16: bool = False
    rank: int = 0
    hook: dict[str, Any] | None = field(default=None, hash=False)
    one_bucket: bool = False


WAYS: Final = {
    "alone": Way("nothing summed", "none"),
    "gloo": Way("Gloo", "gloo"),
    "gloo-fp16": Way("Gloo, fp16 hook", "gloo", fp16=True),
    "powersgd-1": Way("Gloo, PowerSGD rank 1", "gloo", rank=1, one_bucket=True),
    "powersgd-2": Way("Gloo, PowerSGD rank 2", "gloo", rank=2, one_bucket=True),
    "powersgd-4": Way("Gloo, PowerSGD rank 4", "gloo", rank=4, one_bucket=True),
    "weir": Way("Weir", "weir"),
    "weir-local": Way("Weir local", "local"),
    "weir-hook": Way("Weir hook, dense", "weir", hook={"sparsifier": "dense"}),
    "weir-16": Way("Weir hook, 16 bits", "weir", hook={"sparsifier": "dense", "lane_bits": 16}),
    "weir-8": Way("Weir hook, 8 bits", "weir", hook={"sparsifier": "dense", "lane_bits": 8}),
    "dfs": Way("Weir hook, dfs", "weir", hook={"sparsifier": "dfs"}),
    "dfs-1": Way("Weir hook, dfs, one bucket", "weir", hook={"sparsifier": "dfs"}, one_bucket=True),
    "topk-block": Way("Weir hook, topk-block", "weir", hook={"sparsifier": "topk-block"}),
    "exdyna": Way("Weir hook, exdyna", "weir", hook={"sparsifier": "exdyna"}),
    "exdyna-1": Way("Weir hook, exdyna, one bucket", "weir", hook={"sparsifier": "exdyna"}, one_bucket=True),
    "dfs-local": Way("Weir hook, dfs local", "local", hook={"sparsifier": "dfs"}),
}
"""Ways by name. The first one is the floor; every one is compared with the second."""


@dataclass(frozen=True)
class TrainItem:
    """Steps of one way. model: of ``SHAPES``. batch: sequences of a rank and step, of ``length`` tokens."""

    case: ClassVar[str] = "train"

    device: str
    way: str
    model: str
    batch: int
    length: int
    steps: int
    warmup: int
    density: float
    rate: float = 6e-4

    @property
    def name(self) -> str:
        """Name in progress reports."""
        return f"training, {WAYS[self.way].words}"

    def run(self, place: Place) -> dict[str, Any]:
        """Return the seconds of every step, and all losses, those of steps that warm up included."""
        training = Training(self, place)
        shape, count = SHAPES[self.model], self.warmup + self.steps
        text = batches(read_tokens(shape.vocabulary), place.rank, count, self.batch, self.length)
        seconds, losses = [], []
        before = training.sent()
        for step in range(count):
            batch = text[step].to(self.device)
            if step == self.warmup:
                before = training.sent()
            began = place.begin()
            loss = training.step(batch)
            seconds.append(place.since(began))
            losses.append(float(loss))
        mean = torch.tensor(losses)
        dist.all_reduce(mean)
        return {
            "seconds": seconds[self.warmup :],
            "losses": [float(loss) / place.size for loss in mean],
            "bytes_up": (training.sent() - before) / self.steps,
            "device_bytes": torch.cuda.max_memory_allocated() if place.cuda else 0,
        }


class Training:
    """A model, its optimizer, and what sums its gradients."""

    def __init__(self, item: TrainItem, place: Place) -> None:
        way = WAYS[item.way]
        self._device, self._sums = item.device, way.group != "none"
        self._weir = place.weir(local=way.group == "local") if way.group in ("weir", "local") else None
        if place.cuda:
            torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(1)  # so that all ranks begin with the same parameters
        with torch.device(item.device):
            model = Gpt(SHAPES[item.model])
        self._ddp = DistributedDataParallel(
            model,
            process_group=self._weir or place.gloo,
            init_sync=False,
            # PowerSGD's hook sums once more when a sum is there, and Gloo's threads wait for it: with several
            # buckets all of them would, and ranks would sum in different orders.
            bucket_cap_mb=_ONE_BUCKET_MB if way.one_bucket else None,
        )
        if way.fp16:
            self._ddp.register_comm_hook(place.gloo, fp16_compress_hook)
        if way.rank:
            low = PowerSGDState(place.gloo, way.rank, start_powerSGD_iter=_DENSE_STEPS)
            self._ddp.register_comm_hook(low, powerSGD_hook)
        if way.hook is not None:
            state = weir.torch.HookState(self._ddp, density=item.density, **way.hook)
            self._ddp.register_comm_hook(state, weir.torch.hook)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), item.rate, (0.9, 0.95), weight_decay=0.1, fused=place.cuda
        )

    def step(self, text: torch.Tensor) -> torch.Tensor:
        """Train on one batch and return its loss."""
        self._optimizer.zero_grad()
        with contextlib.nullcontext() if self._sums else self._ddp.no_sync():
            with torch.autocast(self._device, torch.bfloat16):
                loss: torch.Tensor = self._ddp(text)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def sent(self) -> int:
        """Return how many bytes this rank has sent to the switch."""
        return self._weir.connection.stats.bytes_up if self._weir is not None else 0
