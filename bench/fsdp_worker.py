# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench fsdp``: times steps of a sharded model over Gloo and over Weir, taking turns.

Started with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and Weir's variables; arguments: a JSON ``FsdpSpec``.
Prints one JSON line: by contender, the seconds of each step.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import weir.torch
from weir.bench.allreduce_worker import CONTENDERS

LAYERS = 4
ROWS = 8  # of a rank's batch: little to compute, so that a step is what it moves


@dataclass(frozen=True)
class FsdpSpec:
    """The steps to be timed.

    width: of the linear layers, whose float32 weights are sharded layer by layer. repeats: steps of each
    contender. lane_bits: of Weir's float sums; one contender for each.
    """

    width: int
    repeats: int
    lane_bits: tuple[int, ...]

    def json(self) -> str:
        """Return the spec as a command-line argument."""
        return json.dumps(asdict(self))


class Sharded:
    """A model of ``LAYERS`` linear layers, whose parameters are sharded over a group, and its training."""

    def __init__(self, width: int, group: dist.ProcessGroup) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        own = torch.Generator().manual_seed(dist.get_rank())
        self._batch = torch.randn(ROWS, width, generator=own)

    def step(self) -> None:
        """Train on this rank's batch, once."""
        self._optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()
        self._optimizer.step()

    def parameters(self) -> list[torch.Tensor]:
        """Return all parameters, whole. Every rank is to call it."""
        sharded = cast(Iterator[DTensor], self.model.parameters())
        return [parameter.full_tensor() for parameter in sharded]


def main() -> None:
    """Run the spec on the command line."""
    raw = json.loads(sys.argv[1])
    spec = FsdpSpec(**{**raw, "lane_bits": tuple(raw["lane_bits"])})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        groups = {"gloo": dist.group.WORLD}
        for bits, name in CONTENDERS.items():
            if bits not in spec.lane_bits:
                continue
            options = weir.torch.GroupOptions(lane_bits=bits)
            groups[name] = dist.new_group(backend="weir", pg_options=options)
        models = {name: Sharded(spec.width, group) for name, group in groups.items() if group is not None}
        samples: dict[str, list[float]] = {name: [] for name in models}
        for repeat in range(spec.repeats + 1):
            for name, model in models.items():
                dist.barrier()
                start = time.perf_counter()
                model.step()
                if repeat:  # the first one warms up
                    samples[name].append(time.perf_counter() - start)
        theirs = models["gloo"].parameters()
        for model in models.values():
            for ours, expected in zip(model.parameters(), theirs, strict=True):
                torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
        print(json.dumps(samples), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
