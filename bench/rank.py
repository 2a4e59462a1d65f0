# SPDX-License-Identifier: Apache-2.0
"""A rank of a benchmark: its groups, its clock, and the process that it is.

``python -m weir.bench.rank JOB RESULT``, started by ``weir.bench.ranks`` with RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT and Weir's variables. Both are files of pickles: a function, what it is given, the device and a
time limit; and what it returns.
"""

import faulthandler
import gc
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist

import weir.torch
from weir.host_agent.collectives.packing import LaneBits


class Place:
    """Groups that are made when they are first asked for, by all ranks in the same order, and a clock.

    Attributes:
        rank, size: in the default group, which is Gloo's.
        device: "cuda" or "cpu"; the clock waits for a GPU.
    """

    def __init__(self, device: str) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self._pieces: dict[int, list[dist.ProcessGroup]] = {}
        self._weir: dict[tuple[LaneBits, bool], weir.torch.WeirProcessGroup] = {}

    @property
    def gloo(self) -> dist.ProcessGroup:
        """Gloo's group."""
        group = dist.group.WORLD
        assert group is not None
        return group

    def pieces(self, number: int) -> list[dist.ProcessGroup]:
        """Return that many Gloo groups, for pieces of one tensor."""
        if number not in self._pieces:
            self._pieces[number] = [dist.new_group(backend="gloo") for _ in range(number)]
        return self._pieces[number]

    def weir(self, bits: LaneBits = 32, *, local: bool = False) -> weir.torch.WeirProcessGroup:
        """Return Weir's group with ``bits`` to a value. local: its ranks reduce in the host's memory."""
        if (bits, local) not in self._weir:
            options = weir.torch.GroupOptions(lane_bits=bits, local="on" if local else "off")
            group = dist.new_group(backend="weir", pg_options=options)
            self._weir[bits, local] = cast(weir.torch.WeirProcessGroup, group)
        return self._weir[bits, local]

    def begin(self) -> float:
        """Wait until all ranks are here and the device is idle, and return the time."""
        self._wait_for_device()
        dist.barrier()
        return time.perf_counter()

    def since(self, began: float) -> float:
        """Return the seconds until all that was begun on the device is done."""
        self._wait_for_device()
        return time.perf_counter() - began

    def most(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        most = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return float(most)

    def _wait_for_device(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Do the job on the command line."""
    job, result = map(Path, sys.argv[1:])
    measure, spec, device, limit_s = pickle.loads(job.read_bytes())
    torch.set_num_threads(1)
    try:
        if device == "cuda":
            torch.cuda.set_device(0)
        dist.init_process_group("gloo")
        if limit_s is not None:
            faulthandler.dump_traceback_later(limit_s)  # tells where a rank stood that is then killed
        result.write_bytes(pickle.dumps(measure(Place(device), spec)))
        gc.collect()  # hooks that hold groups
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not to wait, in the groups' end, for ranks that wait for this one


if __name__ == "__main__":
    main()
