# SPDX-License-Identifier: Apache-2.0
"""Kernels make the same bits as the C code: what is chosen, packed, encoded, decoded and kept."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import effort, examples
from tests.host_agent.models import Parts
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits, LaneFormat, PackedLanes, WholeLanes
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.encodings.shared_mask import mark_blocks, words_for
from weir.host_agent.compression.exchange import GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier, sparsifier_names

CHECKED = settings(max_examples=examples(6))  # the interpreter is slow

Kind = Callable[[torch.Tensor, torch.Generator], torch.Tensor]

KINDS: dict[str, Kind] = {
    "normal": lambda x, _: x,
    "many equal": lambda x, _: (2 * x).round(),
    "all equal": lambda x, _: torch.ones_like(x),
    "zero": lambda x, _: torch.zeros_like(x),
    "mostly zero": lambda x, g: x * (torch.rand(x.shape, generator=g) < 0.01),
    "not finite": lambda x, g: torch.where(torch.rand(x.shape, generator=g) < 0.001, torch.nan, x),
    "infinite": lambda x, g: torch.where(torch.rand(x.shape, generator=g) < 0.001, torch.inf, x),
    "tiny": lambda x, _: x * 1e-40,
    "huge": lambda x, _: (x * 1e38).clamp(-3.4e38, 3.4e38),
    "of all magnitudes": lambda x, g: x * torch.exp(20 * torch.randn(x.shape, generator=g)),
}


def vector(kind: str, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return KINDS[kind](torch.randn(length, generator=generator), generator)


def reference(values: torch.Tensor, size: int, count: int) -> tuple[list[int], int]:
    """Say which blocks have the largest norms, with the C code, and how many of their values are not zero."""
    from weir.host_agent.compression.sparsifiers.density import worthiest
    from weir.host_agent.compression.sparsifiers.dfs_blocks import norms

    mask = np.zeros(words_for(values.numel(), size), np.uint32)
    found = mark_blocks(values, worthiest(norms(values, size), count), size, mask)
    return mask.tolist(), found


@CHECKED
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(KINDS)),
            st.integers(1, 18_000),
            st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]),
            st.floats(0, 1.1),
        ),
        min_size=1,
        max_size=2,
    ),
    st.integers(0, 1000),
)
def test_the_largest_blocks_are_those_of_the_c_code(
    kernel_device: torch.device, parts: list[tuple[str, int, int, float]], seed: int
) -> None:
    from weir.host_agent.compression.kernels import choice

    vectors = [vector(kind, length, seed) for kind, length, _, _ in parts]
    sizes = [size for _, _, size, _ in parts]
    counts = [int(share * -(-length // size)) for _, length, size, share in parts]
    masks = [np.zeros(words_for(v.numel(), size), np.uint32) for v, size in zip(vectors, sizes, strict=True)]
    found = choice.mark_largest([v.to(kernel_device) for v in vectors], sizes, counts, masks)
    expected = [reference(*given) for given in zip(vectors, sizes, counts, strict=True)]
    for elements, mask, (blocks, not_zero) in zip(found, masks, expected, strict=True):
        if elements is not None:
            assert (mask.tolist(), elements) == (blocks, not_zero)


def test_the_choice_is_left_to_others_only_where_squares_do_not_do_or_too_many_are_equal(
    kernel_device: torch.device,
) -> None:
    from weir.host_agent.compression.kernels import choice

    for kind in KINDS:
        values = vector(kind, effort(6_000, 20_000), 7).to(kernel_device)
        for size in (1, 32):
            mask = np.zeros(words_for(values.numel(), size), np.uint32)
            made = choice.mark_largest([values], [size], [20], [mask]) != [None]
            squares_do = kind not in ("tiny", "huge", "infinite", "of all magnitudes")
            few_are_equal = kind not in ("all equal", "many equal")
            assert made or not (few_are_equal if size == 1 else squares_do)


@CHECKED
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 20_000), st.floats(0, 4), st.integers(0, 1000))
def test_a_threshold_marks_what_reaches_it(
    kernel_device: torch.device, kind: str, length: int, threshold: float, seed: int
) -> None:
    from weir.host_agent.compression.kernels import choice

    values = vector(kind, length, seed)
    first, last = length // 3, length // 2 + 1
    expected = ~values.isfinite()
    expected[first:last] |= values[first:last].abs() >= np.float32(threshold)
    expected &= values != 0
    mask = np.zeros(words_for(length, 1), np.uint32)
    found = choice.mark_from([values.to(kernel_device)], [(first, last)], threshold, [mask])
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:length]
    assert np.array_equal(bits.astype(bool), expected.numpy())
    assert found == [int(expected.sum())]


FORMS: list[LaneFormat] = [
    WholeLanes(4),
    *(PackedLanes(fields, workers) for fields in (2, 3, 4) for workers in (1, 2, 7)),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_lanes_and_what_they_stand_for_are_those_of_the_c_code(
    kernel_device: torch.device, form: LaneFormat
) -> None:
    for kind in ("normal", "mostly zero", "tiny", "huge", "of all magnitudes"):
        check_lanes(kernel_device, form, vector(kind, 2000, 3))


def check_lanes(kernel_device: torch.device, form: LaneFormat, values: torch.Tensor) -> None:
    from weir.host_agent.compression.kernels.lanes import Blocks

    block = SCALE_BLOCK
    values[256:512] = 0
    every = form.scales(values.numpy(), block)
    some = np.array([0, 2, 3, 7], np.uint32)  # the last one is shorter
    for rows, scales in ((None, every), (some, every[some])):
        lanes = form.encode(values.numpy(), rows, scales, block, lambda count: np.empty(count, np.int32))
        blocks = Blocks(form, rows, scales, block, kernel_device)
        there = blocks.encode(values.to(kernel_device))
        assert np.array_equal(there.cpu().numpy(), lanes)
        for sums in (lanes, (lanes.view(np.uint32) * np.uint32(form.workers)).view(np.int32)):
            expected, got = np.zeros(2000, np.float32), torch.zeros(2000, device=kernel_device)
            form.decode(sums, rows, scales, block, expected)
            blocks.decode(torch.from_numpy(sums).to(kernel_device), got)
            assert got.cpu().numpy().tobytes() == expected.tobytes()


SIZES = 3000, 64, 1, 5000, 300


def steps(device: torch.device, name: str, dtype: torch.dtype, **options: object) -> list[object]:
    """Return all that two workers' steps leave behind, of gradients on a device."""
    group, module = InMemoryGroup(2), Parts(SIZES)
    named = list(module.named_parameters())
    layout = BucketLayout.of(0, [n for n, _ in named], [p for _, p in named], SCALE_BLOCK)
    policy = LossPolicy.of(options.pop("loss", 0.0))  # type: ignore[arg-type]
    workers = [
        GradientExchange(create_sparsifier(name, SparsifierOptions(density=0.05)), policy, **options)  # type: ignore[arg-type]
        for _ in group.communicators
    ]
    for worker, communicator in zip(workers, group.communicators, strict=True):
        worker.join(module, communicator, slots=16)
    found: list[object] = []
    for step in range(2):
        buckets = []
        for rank in range(len(workers)):
            generator = torch.Generator().manual_seed(100 * step + rank)
            values = torch.randn(layout.elements, generator=generator)
            values *= torch.exp(torch.randn(layout.elements, generator=generator))
            values[1000:2000] = 0
            buckets.append(values.to(dtype).to(device))
        done = group.run(
            [lambda w=w, b=b: w.exchange_bucket(layout, b) for w, b in zip(workers, buckets, strict=True)]
        )
        for one, bucket, worker in zip(done, buckets, workers, strict=True):
            found.append(bucket.cpu().view(torch.uint8).tolist())
            found.append((one.chosen_elements, one.union_elements, one.blocks, one.notes))
            residuals = worker.gradients.state_dict()["residuals"]
            found += [(key, kept.cpu().view(torch.int32).tolist()) for key, kept in residuals.items()]
            found.append(repr(worker.shared_state()))
    return found


Case = tuple[str, LaneBits | None, str | None, float]

CASES: list[Case] = [  # each has a way of its own through the kernels
    ("dense", 8, None, 0.0),
    ("dense", 32, None, 0.1),
    ("dfs", None, None, 0.0),
    ("topk-block", 16, None, 0.0),
    ("topk-block", 32, "blocks:64", 0.1),
    ("exdyna", None, None, 0.0),
]
MORE: list[Case] = [  # on a GPU: the interpreter is slow
    *((name, None, None, 0.0) for name in sparsifier_names()),
    *((name, 16, None, 0.0) for name in ("dense", "dfs", "exdyna")),
    ("dfs", 32, None, 0.1),
    ("topk", 32, "shared-mask:4", 0.0),
    ("topk-block", 16, "dense", 0.0),
]


@pytest.mark.parametrize(
    ("name", "bits", "encoding", "loss"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.cuda) for case in MORE)],
)
def test_the_steps_of_every_method_are_the_same_on_either_device(
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bits: LaneBits | None,
    encoding: str | None,
    loss: float,
) -> None:
    # torch.bfloat16 is left to the GPU: Triton's interpreter rounds it otherwise
    dtypes = (
        [torch.float32] if kernel_device.type == "cpu" else [torch.float32, torch.float16, torch.bfloat16]
    )
    for dtype in dtypes:
        options = {"lane_bits": bits, "encoding": encoding, "loss": loss}
        on_device = steps(kernel_device, name, dtype, **options)
        with monkeypatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "0")
            native = steps(torch.device("cpu"), name, dtype, **options)
        for ours, theirs in zip(on_device, native, strict=True):
            assert ours == theirs
