# SPDX-License-Identifier: Apache-2.0
"""``torchrun … endless_sums.py FOLDER [TIMEOUT]``: all ranks sum integers and check them until FOLDER/stop is
there. The ranks wait TIMEOUT seconds for one another.

FOLDER/rounds-RANK says how many sums a rank has had, in text; a sum that is wrong ends the job. At the end,
rank 1 leaves only when there is no FOLDER/linger.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import weir.torch  # noqa: F401 registers the backend

_VALUES = 5000


def main() -> None:
    folder = Path(sys.argv[1])
    timeout = timedelta(seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 60)
    dist.init_process_group("weir", timeout=timeout)
    rank, size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} begins", flush=True)
    rounds, going = 0, True
    while going:
        rounds += 1
        own = torch.arange(_VALUES) * (rank + 1) + rounds
        dist.all_reduce(own)
        assert own.equal(torch.arange(_VALUES) * (size * (size + 1) // 2) + size * rounds), rounds
        stop = torch.tensor([int((folder / "stop").exists())])
        dist.all_reduce(stop)
        going = not stop.item()
        draft = folder / f".rounds-{rank}"
        draft.write_text(str(rounds))
        draft.replace(folder / f"rounds-{rank}")
    print(f"rank {rank}: {rounds} exact sums", flush=True)
    while rank == 1 and (folder / "linger").exists():
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
