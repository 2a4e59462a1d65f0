# SPDX-License-Identifier: Apache-2.0
"""A switch, a controller and two workers on this machine, without torchrun.

python examples/local_cluster.py
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import weir
import weir.torch

WORKERS = 2


def work(rank: int, store: str, environments: list[dict[str, str]]) -> None:
    """Be one worker: sum a tensor with the others and send its parts around."""
    os.environ.update(environments[rank])
    dist.init_process_group("weir", store=dist.FileStore(store, WORKERS), rank=rank, world_size=WORKERS)
    try:
        tensor = torch.arange(4, dtype=torch.float32) * (rank + 1)
        dist.all_reduce(tensor)  # summed by the switch
        swapped = torch.zeros(2, dtype=torch.int64)
        dist.all_to_all_single(swapped, torch.tensor([10 * rank, 10 * rank + 1]))
        print(f"rank {rank}: sum {tensor.tolist()}, swapped {swapped.tolist()}", flush=True)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Start everything, and stops it."""
    with weir.local_cluster(workers=WORKERS) as cluster, tempfile.TemporaryDirectory() as directory:
        environments = [cluster.environment(rank) for rank in range(WORKERS)]
        mp.spawn(work, (str(Path(directory) / "store"), environments), nprocs=WORKERS)
        events = {event.name: event.count.packets for event in cluster.status().switches[0].events}
        print(f"the switch completed {events['round_complete']} rounds")


if __name__ == "__main__":
    main()
