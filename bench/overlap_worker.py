# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench overlap``: steps of one model with DDP alone and with LayersFirst, taking turns.

Started with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and Weir's variables; arguments: a JSON
``OverlapSpec``. Prints one JSON line, the fields of ``Turns``.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from weir.train.config import make_config
from weir.train.data import share
from weir.train.task import make_task, mean_loss

_WHOLE: Final = 1e4  # MB: one bucket


@dataclass(frozen=True)
class OverlapSpec:
    """The steps to be timed.

    model: of ``weir train``. batch: samples of a rank and step. steps: of a turn. repeats: turns of either
    kind, after one that warms up. bucket: size of DDP's buckets in MB; 0: DDP's own. piece: of LayersFirst,
    in lanes.
    device: seconds of a step's forward and backward pass on an accelerator; 0: they take what they take here.
    """

    model: str
    batch: int
    steps: int
    repeats: int
    bucket: float
    piece: int
    device: float

    def json(self) -> str:
        """Return the spec as a command-line argument."""
        return json.dumps(asdict(self))


@dataclass
class Turns:
    """Seconds of a step in each turn.

    They are of DDP with one bucket, which is summed after the backward pass; of DDP alone; of LayersFirst;
    and of a step without a network.

    Beside them, forward passes that began before all was summed, and pieces that overtook others; whether DDP
    alone and LayersFirst ended with the same parameters, bit for bit.
    """

    after: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    overlapped: int = 0
    overtaken: int = 0
    same: bool = False


class Trained:
    """One of several equal models, with its optimizer; with LayersFirst or without.

    bucket: of DDP, in MB; None: its own choice.
    """

    def __init__(self, spec: OverlapSpec, first: bool, bucket: float | None) -> None:
        config = make_config(model=spec.model, workers=dist.get_world_size(), batch_size=spec.batch)
        self.task = make_task(config)
        self.ddp = DistributedDataParallel(self.task.model, forward_sync_buffers=False, bucket_cap_mb=bucket)
        if spec.device:
            inputs = self.task.data.train.inputs[: spec.batch]
            wait_as_for_a_device(self.task.model, inputs, spec.device)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01, momentum=0.9)
        self.layers = weir.torch.LayersFirst(self.ddp, self.optimizer, piece=spec.piece) if first else None
        samples = len(self.task.data.train)
        self.batches = share(samples, dist.get_rank(), dist.get_world_size(), spec.batch, 0, 1)
        self.done = 0

    def turn(self, steps: int) -> float:
        """Return the seconds that a step takes, from a common start to the last step's end."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self._step(self.ddp)
        if self.layers is not None:
            self.layers.finish()
        return (time.perf_counter() - start) / steps

    def compute(self) -> float:
        """Return the seconds of a step's forward and backward pass alone."""
        start = time.perf_counter()
        with self.ddp.no_sync():
            self._loss(self.ddp).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        return time.perf_counter() - start

    def _step(self, model: torch.nn.Module) -> None:
        self.optimizer.zero_grad()
        self._loss(model).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.done += 1

    def _loss(self, model: torch.nn.Module) -> torch.Tensor:
        batch = self.batches[self.done % len(self.batches)]
        split = self.task.data.train
        return mean_loss(model(split.inputs[batch]), split.targets[batch])


def wait_as_for_a_device(model: torch.nn.Module, inputs: torch.Tensor, seconds: float) -> None:
    """Make each layer's passes wait as long as an accelerator would compute, which leaves the processor free.

    A layer's share of the time is that of its multiplications; backward takes twice as long as forward.
    """
    work: dict[torch.nn.Module, float] = {}

    def measure(layer: torch.nn.Module, _inputs: Any, output: Any) -> None:
        values = output if isinstance(output, torch.Tensor) else output[0]
        positions = values.numel() / values.shape[1 if isinstance(layer, torch.nn.Conv2d) else -1]
        work[layer] = positions * sum(one.numel() for one in layer.parameters(recurse=False))

    kinds = (torch.nn.Conv2d, torch.nn.Linear, torch.nn.LSTM)
    layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
    handles = [layer.register_forward_hook(measure) for layer in layers]
    with torch.no_grad():
        model.eval()(inputs)
    model.train()
    for handle in handles:
        handle.remove()
    unit = seconds / 3 / sum(work.values())
    for layer in layers:
        layer.register_forward_hook(partial(_wait, unit * work[layer]))
        layer.register_full_backward_hook(partial(_wait, 2 * unit * work[layer]))


def _wait(seconds: float, *_: Any) -> None:
    time.sleep(seconds)


def main() -> None:
    """Run the spec on the command line."""
    spec = OverlapSpec(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("weir")
    try:
        bucket = spec.bucket or None
        after, alone = Trained(spec, False, _WHOLE), Trained(spec, False, bucket)
        first = Trained(spec, True, bucket)
        turns = Turns()
        for repeat in range(spec.repeats + 1):
            times = *(one.turn(spec.steps) for one in (after, alone, first)), alone.compute()
            if repeat:
                lists = turns.after, turns.alone, turns.first, turns.compute
                for kept, seconds in zip(lists, times, strict=True):
                    kept.append(seconds)
        assert first.layers is not None
        turns.overlapped = first.layers.overlapped
        turns.overtaken = first.layers.overtaken
        both = zip(alone.ddp.parameters(), first.ddp.parameters(), strict=True)
        turns.same = all(torch.equal(one, other) for one, other in both)
        print(json.dumps(asdict(turns)), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
