# SPDX-License-Identifier: Apache-2.0
"""The code of changes: what is read is what was written, in as few bytes as promised, and damage is found."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.host_agent.compression.test_changes import DTYPES, bits, versions
from weir.host_agent.compression import change_code
from weir.host_agent.compression.change_code import CodeError, Form, read, write
from weir.host_agent.compression.changes import apply, find, take

BIG = 1_000_000


def coded(old: torch.Tensor, new: torch.Tensor) -> tuple[bytes, Counter[Form]]:
    changes, forms = find(old, new), Counter[Form]()
    return write(changes.on_host(), take(old, changes).cpu(), new, forms), forms


def round_trip(old: torch.Tensor, new: torch.Tensor) -> tuple[bytes, Counter[Form]]:
    code, forms = coded(old, new)
    replica = old.clone()
    apply(replica, read(memoryview(code), replica))
    np.testing.assert_array_equal(bits(replica), bits(new))
    return code, forms


def moved(old: torch.Tensor, share: float, seed: int = 1) -> torch.Tensor:
    """Return a new version: a share of the values is one unit in the last place up or down."""
    generator = torch.Generator().manual_seed(seed)
    new = old.clone()
    integers = new.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[old.element_size()])
    chosen = torch.rand(old.numel(), generator=generator) < share
    signs = torch.randint(0, 2, (int(chosen.sum()),), generator=generator) * 2 - 1
    integers[chosen] += signs.to(integers.dtype)
    return new


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 3000),
    st.sampled_from((0.0, 0.001, 0.01, 0.1, 0.3, 0.9, 0.99, 1.0)),
    st.integers(0, 3),
    st.integers(0, 100),
)
def test_what_is_read_was_written(
    dtype: torch.dtype, length: int, share: float, start: int, seed: int
) -> None:
    old, new = versions(dtype, length, share, seed, start)
    code, _ = round_trip(old, new)
    assert len(code) <= 10 + length * dtype.itemsize


@given(st.sampled_from(DTYPES), st.integers(1, 600), st.data())
def test_any_bits_to_any_bits(dtype: torch.dtype, length: int, data: st.DataObject) -> None:
    size = length * dtype.itemsize
    ends = [
        torch.tensor(list(data.draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8).view(dtype)
        for _ in range(2)
    ]
    round_trip(*ends)


def test_several_pieces_each_in_its_form() -> None:
    old = torch.randn(4 * change_code.PIECE + 5).bfloat16()
    new = old.clone()
    piece = change_code.PIECE
    new[piece : 2 * piece] = moved(old[piece : 2 * piece], 0.01)
    new[2 * piece : 3 * piece] = moved(old[2 * piece : 3 * piece], 0.4)
    new[3 * piece : 4 * piece] = moved(old[3 * piece : 4 * piece], 1.1)
    _, forms = round_trip(old, new)
    assert forms == {Form.NONE: 2, Form.LIST: 1, Form.MASK: 1, Form.ALL: 1}


def test_few_small_changes_take_little_more_than_their_entropy() -> None:
    old = torch.randn(BIG).bfloat16()
    code, forms = coded(old, moved(old, 0.01))
    entropy = -(0.01 * math.log2(0.01) + 0.99 * math.log2(0.99)) + 0.01  # positions, and a sign each
    assert set(forms) == {Form.LIST}
    assert 8 * len(code) / BIG < 1.15 * entropy
    assert len(code) / BIG < 0.0135


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("share", [0.25, 0.97, 1.0])
def test_never_longer_than_the_whole(dtype: torch.dtype, share: float) -> None:
    old = torch.randint(0, 256, (BIG * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    new = old.clone()
    chosen = torch.rand(BIG) < share
    integers = new.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    limits = torch.iinfo(integers.dtype)
    integers[chosen] = torch.empty_like(integers).random_(limits.min, limits.max)[chosen]
    code, _ = round_trip(old, new)
    assert len(code) <= 1.0001 * BIG * dtype.itemsize


@given(st.integers(0, 10_000), st.data())
def test_damage_raises_or_gives_some_changes_of_the_vector(seed: int, data: st.DataObject) -> None:
    old, new = versions(torch.bfloat16, 500, 0.2, seed)
    code, _ = coded(old, new)
    at = data.draw(st.integers(0, len(code) - 1))
    damaged = bytearray(code)
    damaged[at] ^= data.draw(st.integers(1, 255))
    damaged = damaged[: data.draw(st.integers(0, len(code)))]
    try:
        changes = read(memoryview(bytes(damaged)), old)
    except CodeError:
        return
    apply(old, changes)  # fits, whatever is in it


def test_bytes_behind_the_changes_are_refused() -> None:
    code, _ = coded(*versions(torch.bfloat16, 500, 0.2, 1))
    with pytest.raises(CodeError, match="1 bytes behind"):
        read(memoryview(code + b"\0"), torch.zeros(500, dtype=torch.bfloat16))
