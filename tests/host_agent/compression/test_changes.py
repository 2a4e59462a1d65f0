# SPDX-License-Identifier: Apache-2.0
"""Changes between two versions of a vector: C and torch's operations against numpy, kernels against C."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.effort import effort
from weir.host_agent.collectives.dtypes import pack_bits
from weir.host_agent.compression import changes as module
from weir.host_agent.compression.changes import Changes, apply, find, renew, take

DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint32,
)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
TILE = 256 * 32  # values of a program of the kernels
LENGTHS = (0, 1, 31, 32, 33, 63, 1000, TILE - 1, TILE, TILE + 1, 3 * TILE + 77)
SHARES = (0.0, 0.01, 0.3, 1.0)
CASES = (
    (0, 0.0),
    (1, 1.0),
    (31, 0.3),
    (32, 0.1),
    (33, 0.3),
    (1000, 1.0),
    (TILE - 1, 0.01),
    (TILE, 0.01),
    (2 * TILE, 0.0),
    (3 * TILE + 77, 0.01),
)


def bits(tensor: torch.Tensor) -> npt.NDArray[np.generic]:
    """Return the tensor's bits as integers, in main memory."""
    return tensor.detach().view(INTEGERS[tensor.element_size()]).cpu().numpy()


def versions(
    dtype: torch.dtype, length: int, share: float, seed: int, start: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two versions of any bits, NaN among them, that begin this many values into their memory."""
    generator = np.random.default_rng(seed)
    size = dtype.itemsize
    old = torch.empty((start + length) * size, dtype=torch.uint8)
    old[:] = torch.from_numpy(generator.integers(0, 256, len(old), dtype=np.uint8))
    old = old.view(dtype)
    new = old.clone()
    number = round(share * length)
    at = torch.from_numpy(np.sort(generator.choice(length, number, replace=False)) + start)
    new.view(INTEGERS[size])[at] ^= 1 << int(generator.integers(8 * size - 1))
    return old[start:], new[start:]


def expected(
    old: torch.Tensor | None, new: torch.Tensor
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.generic]]:
    """Return mask and values, by numpy."""
    after = bits(new)
    flags = after != (0 if old is None else bits(old))
    return pack_bits(flags), after[flags]


def check(changes: Changes, old: torch.Tensor | None, new: torch.Tensor) -> None:
    mask, values = expected(old, new)
    assert changes.mask.dtype == torch.uint32
    assert changes.values.dtype == new.dtype
    assert changes.count == values.size
    np.testing.assert_array_equal(changes.mask.cpu().numpy(), mask)
    np.testing.assert_array_equal(bits(changes.values), values)


def round_trip(old: torch.Tensor, new: torch.Tensor, update: bool) -> None:
    replica, before = old.clone(), old.clone()
    changes = find(old, new, update=update)
    check(changes, before, new)
    np.testing.assert_array_equal(bits(old), bits(new if update else before))
    np.testing.assert_array_equal(bits(take(before, changes)), bits(before)[bits(before) != bits(new)])
    renewed = before.clone()
    found, past = renew(renewed, new)
    check(found, before, new)
    assert past.dtype == new.dtype
    np.testing.assert_array_equal(bits(past), bits(before)[bits(before) != bits(new)])
    np.testing.assert_array_equal(bits(renewed), bits(new))
    apply(replica, changes)
    np.testing.assert_array_equal(bits(replica), bits(new))
    summary = find(None, changes.mask)
    check(summary, None, changes.mask)
    mask = torch.zeros_like(changes.mask)
    apply(mask, summary)
    np.testing.assert_array_equal(bits(mask), bits(changes.mask))


@given(
    st.sampled_from(DTYPES),
    st.one_of(st.sampled_from(LENGTHS), st.integers(0, 3000)),
    st.sampled_from(SHARES),
    st.integers(0, 3),
    st.integers(0, 100),
    st.booleans(),
)
def test_native(dtype: torch.dtype, length: int, share: float, start: int, seed: int, update: bool) -> None:
    round_trip(*versions(dtype, length, share, seed, start), update)


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's operations, in chunks that are small."""
    monkeypatch.setattr(module, "_implementation", lambda device: module._Operations)
    monkeypatch.setattr(module, "_CHUNK", 1024)
    yield


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize(("length", "share"), CASES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_operations(dtype: torch.dtype, length: int, share: float) -> None:
    round_trip(*versions(dtype, length, share, length), update=bool(length % 2))


@pytest.mark.cuda
@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_on_a_gpu(dtype: torch.dtype) -> None:
    old, new = versions(dtype, 3 * TILE + 77, 0.1, 1)
    round_trip(old.cuda(), new.cuda(), update=True)


@pytest.fixture
def with_kernels(kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Yield a device on which kernels find changes: on the CPU, too."""
    monkeypatch.setattr(module, "_implementation", lambda device: module._Kernels)
    return kernel_device


@pytest.mark.parametrize(("length", "share"), effort(CASES[1::2], CASES))
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_kernels(with_kernels: torch.device, dtype: torch.dtype, length: int, share: float) -> None:
    old, new = versions(dtype, length, share, length)
    round_trip(old.to(with_kernels), new.to(with_kernels), update=bool(length % 2))


@pytest.mark.parametrize("start", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_kernels_on_a_part_of_a_tensor(with_kernels: torch.device, dtype: torch.dtype, start: int) -> None:
    old, new = (each.to(with_kernels) for each in versions(dtype, 2 * TILE + 5, 0.1, 1))
    round_trip(old[start:], new[start:], update=True)


@pytest.mark.cuda
def test_changes_of_many_tiles_on_a_gpu() -> None:
    old, new = (each.cuda() for each in versions(torch.bfloat16, 5_000_001, 0.02, 1))
    round_trip(old, new, update=True)


@pytest.mark.cuda
def test_the_host_does_not_wait_but_for_the_count_of_values() -> None:
    old, new = (each.cuda() for each in versions(torch.bfloat16, 100_001, 0.02, 1))
    find(old, new)  # compiled
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            changes = find(old, new)
            summary = find(None, changes.mask)
            there = changes.on_host()
            apply(old, there.on(old.device))
    finally:
        torch.cuda.set_sync_debug_mode(before)
    torch.cuda.synchronize()
    assert there.mask.is_pinned()
    assert there.values.is_pinned()
    np.testing.assert_array_equal(there.mask.numpy(), bits(changes.mask).view(np.uint32))
    np.testing.assert_array_equal(bits(there.values), bits(changes.values))
    np.testing.assert_array_equal(bits(old), bits(new))
    assert summary.count == np.count_nonzero(there.mask.numpy())


def test_zero_and_minus_zero_differ_and_a_nan_is_itself() -> None:
    old = torch.tensor([0.0, float("nan"), 1.0, -0.0])
    new = torch.tensor([-0.0, float("nan"), 1.0, 0.0])
    changes = find(old, new)
    assert changes.mask.tolist() == [0b1001]
    assert changes.values.tolist() == [0.0, 0.0]
    assert np.signbit(changes.values.numpy()).tolist() == [True, False]


def test_copies_are_in_main_memory() -> None:
    there = find(torch.zeros(3), torch.ones(3)).on_host()
    assert there.values.tolist() == [1, 1, 1]


@pytest.mark.cuda
def test_changes_from_one_device_to_another() -> None:
    old, new = versions(torch.bfloat16, 100_001, 0.02, 1)
    apply(old, find(old.cuda(), new.cuda()).on_host())
    np.testing.assert_array_equal(bits(old), bits(new))


def test_versions_that_are_not_alike() -> None:
    with pytest.raises(TypeError, match="bfloat16"):
        find(torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3))
    with pytest.raises(ValueError, match="3 values and a new one of 4"):
        find(torch.zeros(3), torch.zeros(4))
    with pytest.raises(TypeError, match="float64"):
        find(None, torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="contiguous"):
        find(None, torch.zeros(4, 4)[:, 1])
    with pytest.raises(ValueError, match="no old version"):
        find(None, torch.zeros(3), update=True)


def test_changes_that_do_not_fit() -> None:
    changes = find(torch.zeros(40), torch.ones(40))
    with pytest.raises(TypeError, match="float32"):
        apply(torch.zeros(40, dtype=torch.int32), changes)
    with pytest.raises(ValueError, match="2 words for 65 values"):
        apply(torch.zeros(65), changes)
    with pytest.raises(ValueError, match="mask that selects 40"):
        apply(torch.zeros(39), changes)
    with pytest.raises(ValueError, match="mask that selects 40"):
        apply(torch.zeros(40), Changes(changes.mask, 39, changes.values[:39]))
    with pytest.raises(ValueError, match="39 values, not 40"):
        apply(torch.zeros(40), Changes(changes.mask, 40, changes.values[:39]))


def test_kernels_keep_to_their_memory(with_kernels: torch.device) -> None:
    changes = find(None, torch.ones(40, device=with_kernels))
    around = torch.zeros(50, device=with_kernels)
    apply(around[:39], changes)
    assert around.tolist() == [1.0] * 39 + [0.0] * 11
    fewer = torch.cat([changes.values[:20], torch.full((20,), 2.0, device=with_kernels)])
    apply(around[:40], Changes(changes.mask, 20, fewer[:20]))
    assert around.tolist() == [1.0] * 39 + [0.0] * 11
