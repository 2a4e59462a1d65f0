# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench latency``: small all-reduces one after another, over Gloo and over Weir in turns.

Started as ``allreduce_worker`` is; arguments: a JSON ``LatencySpec``. Prints one JSON line: by bytes and
backend, a list of ``Turn`` fields.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

import weir.torch  # noqa: F401  registers the backend
from weir.processor import ProcessorTime

CONTENDERS: Final = ("gloo", "weir")


@dataclass(frozen=True)
class LatencySpec:
    """The all-reduces to be timed.

    sizes: of the float32 tensors, in bytes. repeats: turns of each contender. calls: all-reduces in a turn.
    switches: process ids of the switches.
    """

    sizes: tuple[int, ...]
    repeats: int
    calls: int
    switches: tuple[int, ...] = ()

    def json(self) -> str:
        """Return the spec as a command-line argument."""
        return json.dumps(asdict(self))


class Turn(NamedTuple):
    """All-reduces one after another, as one rank saw them, per call.

    seconds: from a common start. worker, switch: seconds of processor time, of this rank and of all switches.
    """

    seconds: float
    worker: float
    switch: float


def turn(data: torch.Tensor, group: dist.ProcessGroup, spec: LatencySpec) -> Turn:
    """Measure one turn. data: becomes the sum of the sums, so it must be small."""
    dist.barrier()
    before, start = ProcessorTime.now(spec.switches), time.perf_counter()
    for _ in range(spec.calls):
        dist.all_reduce(data, group=group)
    seconds = time.perf_counter() - start
    used = ProcessorTime.now(spec.switches) - before
    return Turn(seconds / spec.calls, used.own / spec.calls, used.others / spec.calls)


def main() -> None:
    """Run the spec on the command line."""
    raw = json.loads(sys.argv[1])
    spec = LatencySpec(**{**raw, "sizes": tuple(raw["sizes"]), "switches": tuple(raw["switches"])})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        groups = dict(zip(CONTENDERS, (dist.group.WORLD, dist.new_group(backend="weir")), strict=True))
        turns: dict[int, dict[str, list[Turn]]] = {}
        for size in spec.sizes:
            turns[size] = {name: [] for name in groups}
            for repeat in range(spec.repeats + 1):
                for name, group in groups.items():
                    assert group is not None
                    taken = turn(torch.full((size // 4,), 2.0**-60), group, spec)
                    if repeat:  # the first one warms up
                        turns[size][name].append(taken)
        print(json.dumps(turns), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
