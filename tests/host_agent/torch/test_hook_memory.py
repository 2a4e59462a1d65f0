# SPDX-License-Identifier: Apache-2.0
"""Memory of the hook: dense sums lie where the vector lay, and a sparse method keeps one residual."""

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import weir.torch
from tests.host_agent.models import Parts
from tests.host_agent.torch.worlds import World
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.process.memory import memory_of

SIZE = 2
LARGE = 10_000_000  # values, whose memory the C library takes from the kernel, and gives back


def hooked(method: str, *sizes: int) -> tuple[Any, BucketLayout]:
    """Return the state of a hook, and the layout of a bucket with all its parameters."""
    model = Parts(sizes)
    named = list(model.named_parameters())
    layout = BucketLayout.of(0, [name for name, _ in named], [one for _, one in named], 256)
    return weir.torch.HookState(model, sparsifier=method), layout


def held(method: str) -> list[tuple[float, float]]:
    """Return of each of three steps, in sizes of the bucket: the most memory that it took, and what was kept
    since the beginning.
    """
    state, layout = hooked(method, LARGE)
    bucket, found = torch.zeros(LARGE).normal_(), []
    start = memory_of()["VmRSS"]
    for _ in range(3):
        bucket.normal_()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
        before = memory_of()["VmRSS"]
        state.group.submit(partial(state.average_bucket, layout, bucket, True)).wait()
        after = memory_of()
        most, kept = after["VmHWM"] - before, after["VmRSS"] - start
        found.append((most / bucket.nbytes, kept / bucket.nbytes))
    return found


@pytest.mark.parametrize(
    ("method", "most", "kept"),
    [
        ("dense", 1.5, 0.4),  # the vector; lanes and their sum take its place
        ("dfs", 1.8, 1.8),  # the next residual, while there is the last one, which is kept; not two of them
    ],
)
def test_a_bucket_takes_little_memory(world: World, method: str, most: float, kept: float) -> None:
    for steps in world.run(held, method):
        assert max(taken for taken, _ in steps) < most
        assert steps[-1][1] < kept


def averaged(in_place: bool) -> tuple[int, bytes]:
    """Return how many sums were made in place, and a bucket's average with zeros of both signs."""
    state, layout = hooked("dense", 5000, 70, 1030)
    connection, made = state.group.connection, 0
    original = connection.sum_floats

    def sum_floats(*args: Any) -> Any:
        nonlocal made
        made += 1
        return original(*args) if in_place else None

    generator = torch.Generator().manual_seed(dist.get_rank())
    bucket = torch.randn(layout.elements, generator=generator) * 10 ** torch.randn(
        layout.elements, generator=generator
    )
    bucket[300:1800] = -0.0
    bucket[2000 + dist.get_rank() : 4000] = 0.0
    with mock.patch.object(connection, "sum_floats", sum_floats):
        state.group.submit(partial(state.average_bucket, layout, bucket, True)).wait()
    return made, bucket.numpy().tobytes()


def test_sums_in_place_have_the_bits_of_lanes(world: World) -> None:
    found = [*world.run(averaged, True), *world.run(averaged, False)]
    assert [made for made, _ in found] == [1] * 2 * SIZE
    assert len({average for _, average in found}) == 1
