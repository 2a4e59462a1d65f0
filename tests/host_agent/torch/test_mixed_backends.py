# SPDX-License-Identifier: Apache-2.0
"""Groups with a backend for each kind of device, of which weir is one: it serves them all."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import sys, torch, torch.distributed as dist, weir.torch
    from weir.host_agent.torch.process_group import WeirProcessGroup
    dist.init_process_group(sys.argv[1])
    group = dist.group.WORLD
    assert isinstance(group, WeirProcessGroup), group
    before = group.connection.number
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.all_reduce(torch.ones(3))
    assert group.connection.number == before + 3, "they went to another backend"
    if dist.get_rank() == 0:
        print("done", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "backends", ["cpu:gloo,cuda:weir", pytest.param("cpu:weir,cuda:nccl", marks=pytest.mark.cuda)]
)
def test_barriers_and_tensors_of_any_device_go_through_weir(tmp_path: Path, backends: str) -> None:
    program = tmp_path / "mixed.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program), backends],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "done", done.stderr
