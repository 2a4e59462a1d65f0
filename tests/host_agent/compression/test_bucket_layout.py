# SPDX-License-Identifier: Apache-2.0
"""Where a bucket's gradients lie in the vector that is sent."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.compression.bucket_layout import BucketLayout

BLOCK = 256
LENGTHS = 1, 255, 256, 257, 1000
LEAST = 2.0**-149  # a quarter of it is zero


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(places=st.sets(st.integers(0, sum(LENGTHS) - 1), max_size=6), data=st.data())
def test_blocks_without_a_gradient_are_those_of_zeros(
    dtype: torch.dtype, places: set[int], data: st.DataObject
) -> None:
    names = [f"p{i}" for i in range(len(LENGTHS))]
    layout = BucketLayout.of(0, names, [torch.empty(n) for n in LENGTHS], BLOCK)
    bucket = torch.zeros(layout.elements, dtype=dtype)
    for place in places:
        bucket[place] = data.draw(st.sampled_from([1.0, -1e-30, LEAST, float("nan"), float("inf"), -0.0]))
    expected = (layout.spread(bucket, 4).view(-1, BLOCK) == 0).all(dim=1)
    assert layout.idle(bucket, 4, BLOCK).tolist() == expected.tolist()
