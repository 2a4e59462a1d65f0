# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench allreduce``: times the same all-reduce over Gloo and over Weir, taking turns.

Started with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and Weir's variables; arguments: a JSON
``AllreduceSpec``. Prints one JSON line: by density and backend, a list of ``Sample`` fields.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

import weir.torch
from weir.host_agent.collectives.packing import LaneBits, lane_format
from weir.process.processor import ProcessorTime

BLOCK: Final = 256
_LARGEST: Final = 6.0  # of 2^32 normal numbers, about
CONTENDERS: Final[dict[LaneBits, str]] = {32: "weir", 16: "weir-16", 8: "weir-8"}
"""The names of Weir's contenders, by bits of a value on the wire."""


@dataclass(frozen=True)
class AllreduceSpec:
    """The all-reduces to be timed.

    ``elements``: length of the float32 tensor; ``densities``: share of its 256-element blocks that are not
    zero, chosen at random by each rank (or the same on all with ``overlap``); ``repeats``: per contender;
    ``switches``: process ids of the switches; ``lane_bits``: of Weir's contenders.
    """

    elements: int
    densities: tuple[float, ...]
    repeats: int
    overlap: bool = False
    switches: tuple[int, ...] = ()
    lane_bits: tuple[int, ...] = (32,)

    def json(self) -> str:
        """Return the spec as a command-line argument."""
        return json.dumps(asdict(self))


class Sample(NamedTuple):
    """One repetition as one rank saw it.

    seconds: from a common start to this rank's end. worker, switch, machine: seconds of processor time, of
    this rank until its end, and of all switches and of the whole machine until the last rank's.
    """

    seconds: float
    worker: float
    switch: float
    machine: float


def tensor(spec: AllreduceSpec, density: float, rank: int) -> torch.Tensor:
    """Return normal numbers in a ``density`` share of the blocks, zeros elsewhere."""
    choice = torch.Generator().manual_seed(1 if spec.overlap else 1 + rank)
    values = torch.Generator().manual_seed(100 + rank)
    blocks = -(-spec.elements // BLOCK)
    keep = torch.zeros(blocks)
    keep[torch.randperm(blocks, generator=choice)[: max(1, round(density * blocks))]] = 1
    data = torch.randn(blocks, BLOCK, generator=values) * keep[:, None]
    return data.flatten()[: spec.elements].clone()


def timed(
    source: torch.Tensor, group: dist.ProcessGroup, switches: tuple[int, ...]
) -> tuple[Sample, torch.Tensor]:
    """Measure one all-reduce; return its result, too."""
    data = source.clone()
    dist.barrier()
    before, start = ProcessorTime.now(switches), time.perf_counter()
    dist.all_reduce(data, group=group)
    seconds, worker = time.perf_counter() - start, time.process_time() - before.own
    dist.barrier()
    used = ProcessorTime.now(switches) - before
    return Sample(seconds, worker, used.others, used.machine), data


def check(ours: torch.Tensor, theirs: torch.Tensor, bits: LaneBits) -> None:
    """Raise AssertionError unless a sum is right, within what values of so many bits lose."""
    workers = dist.get_world_size()
    lost = lane_format(bits, 0.0, workers).error * workers * _LARGEST
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=max(1e-5, lost))


def main() -> None:
    """Run the spec on the command line."""
    raw = json.loads(sys.argv[1])
    lists = {name: tuple(raw[name]) for name in ("densities", "switches", "lane_bits")}
    spec = AllreduceSpec(**{**raw, **lists})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        groups = {"gloo": dist.group.WORLD}
        contenders = {name: bits for bits, name in CONTENDERS.items() if bits in spec.lane_bits}
        for name, bits in contenders.items():
            options = weir.torch.GroupOptions(lane_bits=bits)
            groups[name] = dist.new_group(backend="weir", pg_options=options)
        samples: dict[str, dict[str, list[Sample]]] = {}
        for density in spec.densities:
            source = tensor(spec, density, dist.get_rank())
            taken: dict[str, list[Sample]] = {name: [] for name in groups}
            for repeat in range(spec.repeats + 1):
                results = {}
                for name, group in groups.items():
                    assert group is not None
                    sample, results[name] = timed(source, group, spec.switches)
                    if repeat:  # the first one warms up
                        taken[name].append(sample)
                for name, bits in contenders.items():
                    check(results[name], results["gloo"], bits)
            samples[str(density)] = taken
        print(json.dumps(samples), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
