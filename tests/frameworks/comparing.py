# SPDX-License-Identifier: Apache-2.0
"""Training over Gloo and over Weir in one program that torchrun starts."""

import hashlib
from collections.abc import Callable

import torch
import torch.distributed as dist


def compare(train: Callable[[str], torch.Tensor]) -> None:
    """Train over both, and print a line on rank 0 if both end with the same values.

    Args:
        train: trains over the backend of a name, whose default group it makes and leaves; returns values that
            are the same on all ranks.
    """
    torch.set_num_threads(1)
    expected, found = _trained(train, "gloo"), _trained(train, "weir")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _trained(train: Callable[[str], torch.Tensor], backend: str) -> torch.Tensor:
    values = train(backend).detach().double().flatten()
    group = dist.group.WORLD
    assert group is not None
    assert dist.get_backend() == backend, dist.get_backend()
    assert type(group).__name__ == ("WeirProcessGroup" if backend == "weir" else "ProcessGroup")
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.sha256(values.numpy().tobytes()).hexdigest())
    assert len(set(digests)) == 1, digests
    if dist.get_rank() == 0:
        print(f"trained over {backend}", flush=True)
    dist.destroy_process_group()
    return values
