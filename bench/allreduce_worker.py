# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench allreduce``: times the same all-reduce over Gloo and over Weir, taking turns.

Started with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and Weir's variables; arguments: a JSON
``AllreduceSpec``. Prints one JSON line: seconds per repetition, by density and backend.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

import weir.torch  # noqa: F401 registers the backend

BLOCK = 256


@dataclass(frozen=True)
class AllreduceSpec:
    """The all-reduces to be timed.

    ``elements``: length of the float32 tensor; ``densities``: share of its 256-element blocks that are not
    zero, chosen at random by each rank (or the same on all with ``overlap``); ``repeats``: per backend.
    """

    elements: int
    densities: tuple[float, ...]
    repeats: int
    overlap: bool = False

    def json(self) -> str:
        """Return the spec as a command-line argument."""
        return json.dumps(asdict(self))


def tensor(spec: AllreduceSpec, density: float, rank: int) -> torch.Tensor:
    """Return normal numbers in a ``density`` share of the blocks, zeros elsewhere."""
    choice = torch.Generator().manual_seed(1 if spec.overlap else 1 + rank)
    values = torch.Generator().manual_seed(100 + rank)
    blocks = -(-spec.elements // BLOCK)
    keep = torch.zeros(blocks)
    keep[torch.randperm(blocks, generator=choice)[: max(1, round(density * blocks))]] = 1
    data = torch.randn(blocks, BLOCK, generator=values) * keep[:, None]
    return data.flatten()[: spec.elements].clone()


def timed(source: torch.Tensor, group: dist.ProcessGroup) -> tuple[float, torch.Tensor]:
    """Return seconds of one all-reduce, from a common start, and its result."""
    data = source.clone()
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(data, group=group)
    return time.perf_counter() - start, data


def main() -> None:
    """Run the spec on the command line."""
    raw = json.loads(sys.argv[1])
    spec = AllreduceSpec(raw["elements"], tuple(raw["densities"]), raw["repeats"], raw["overlap"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        groups = {"gloo": dist.group.WORLD, "weir": dist.new_group(backend="weir")}
        seconds: dict[str, dict[str, list[float]]] = {}
        for density in spec.densities:
            source = tensor(spec, density, dist.get_rank())
            times: dict[str, list[float]] = {name: [] for name in groups}
            for repeat in range(spec.repeats + 1):
                results = {}
                for name, group in groups.items():
                    assert group is not None
                    elapsed, results[name] = timed(source, group)
                    if repeat:  # the first one warms up
                        times[name].append(elapsed)
                torch.testing.assert_close(results["weir"], results["gloo"], rtol=1e-5, atol=1e-5)
            seconds[str(density)] = times
        print(json.dumps(seconds), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
