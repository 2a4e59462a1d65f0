# SPDX-License-Identifier: Apache-2.0
"""A program whose ranks share hosts; torchrun runs it on each of these: ``host_program.py FOLDER``.

It sums over a group whose ranks share hosts, and over one of the same ranks that do not. Each rank writes to
FOLDER/RANK.json whether the results are the same, and the bytes that its host sent for each.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weir.torch

COUNT = 300_000
_INTERFACES = Path("/proc/self/net/dev")


def values(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    found = torch.randn(COUNT, generator=generator)
    found.view(-1, 100)[torch.rand(COUNT // 100, generator=generator) < 0.2] = 0
    return found


def bytes_sent() -> int:
    """Return what this namespace's interface has sent."""
    (line,) = (line for line in _INTERFACES.read_text().splitlines() if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])


def summed(group: Any) -> tuple[torch.Tensor, int]:
    """Return a sum over a group, and what the hosts of this kernel have sent meanwhile."""
    tensor = values(1)
    dist.barrier(group=group)
    before = bytes_sent()
    dist.all_reduce(tensor, group=group)
    dist.barrier(group=group)
    return tensor, bytes_sent() - before


def _connection(group: Any) -> Any:
    return group._get_backend(torch.device("cpu")).connection


def main() -> None:
    """Sum, compare and write."""
    dist.init_process_group("weir")
    rank, size = dist.get_rank(), dist.get_world_size()
    flat = dist.new_group(pg_options=weir.torch.GroupOptions(local="off"))
    ours, sent = summed(None)
    theirs, sent_flat = summed(flat)
    outputs = torch.empty(COUNT // size), torch.empty(COUNT // size)
    for output, group in zip(outputs, (None, flat), strict=True):
        dist.reduce_scatter_single(output, values(2), group=group)
    across = dist.new_group([1, 2, 3])  # led by a rank that leads no other group
    if rank:
        tensor = torch.full((COUNT,), float(rank))
        dist.all_reduce(tensor, group=across)
        assert tensor.unique().tolist() == [6.0]
    found = {
        "same": [torch.equal(ours, theirs), torch.equal(*outputs)],
        "sent": sent,
        "sent_flat": sent_flat,
        "kinds": [type(_connection(group)).__name__ for group in (dist.group.WORLD, flat)],
    }
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
