# SPDX-License-Identifier: Apache-2.0
"""Vectors that are reduced chunk by chunk: the bits of the whole, the order of copies, and errors."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from weir.host_agent.collectives import InMemoryGroup, NonFiniteError, chunks
from weir.host_agent.collectives.float_sum import EXACT_VALUES, GATHERED_LANES
from weir.host_agent.collectives.in_memory import OutOfStepError
from weir.host_agent.collectives.long_collectives import LongCollectives
from weir.host_agent.collectives.packing import LANE_BITS, Precision
from weir.host_agent.collectives.reductions import PremulSum, RedOpType
from weir.host_agent.torch.device_vector import are_long, are_long_parts
from weir.wire.definition import SLOT_LANES

SIZE = 3
DEFAULT: int = chunks.CHUNK_VALUES
CHUNK = 16384
COUNTS = [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 77]
Op = dist.ReduceOp


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_VALUES", CHUNK)


@dataclass
class Elsewhere:
    """A vector "on a device": copies that are begun are made when somebody waits for them, and written down.

    wide: the dtype of copies, where it is another.
    """

    tensor: torch.Tensor
    wide: torch.dtype | None = None
    log: list[str] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def count(self) -> int:
        return self.tensor.numel()

    def bounds(self) -> Callable[[], torch.Tensor]:
        self.log.append("bounds begun")
        return lambda: self._copied("bounds", torch.stack(torch.aminmax(self.tensor)))

    def fetch(self, part: slice) -> Callable[[], torch.Tensor]:
        self.log.append(f"{part.start} begun")
        return lambda: self._copied(f"{part.start}", self.tensor[part].to(self.wide or self.dtype, copy=True))

    def room(self, part: slice) -> torch.Tensor:
        self.log.append(f"{part.start} room")
        return torch.full_like(self.tensor[part], 77)

    def replace(self, part: slice, copy: torch.Tensor, result: torch.Tensor) -> None:
        self.log.append(f"{part.start} back")
        assert copy.numel() == result.numel() == part.stop - part.start
        self.tensor[part] = result

    def _copied(self, what: str, copy: torch.Tensor) -> torch.Tensor:
        self.log.append(f"{what} here")
        return copy


def reduced(
    tensors: list[torch.Tensor], op: RedOpType, precision: Precision, *, whole: bool
) -> list[torch.Tensor]:
    """Return every worker's reduction: of the vectors as they are, or from elsewhere."""
    group = InMemoryGroup(len(tensors))
    results = [tensor.clone() for tensor in tensors]

    def work(rank: int) -> None:
        communicator, tensor = group.communicators[rank], results[rank]
        communicator.precision = precision
        collectives = LongCollectives(communicator)
        if whole:
            collectives.all_reduce(tensor, op)
        else:
            is_narrow = tensor.dtype in (torch.float16, torch.bfloat16) and op in (Op.SUM, Op.AVG)
            collectives.all_reduce_in_chunks(Elsewhere(tensor, torch.float32 if is_narrow else None), op)

    group.run([lambda rank=rank: work(rank) for rank in range(len(tensors))])  # type: ignore[misc]
    return results


def vectors(dtype: torch.dtype, count: int, density: float = 0.7) -> Iterator[torch.Tensor]:
    """Yield a vector for each worker: magnitudes differ from block to block, and some blocks are zero."""
    for rank in range(SIZE):
        generator = torch.Generator().manual_seed(rank)
        if not dtype.is_floating_point:
            yield torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator).to(dtype)
            continue
        values = torch.randn(count, generator=generator, dtype=torch.float64)
        scales = 2.0 ** torch.randint(-8, 8, (-(-count // 64),), generator=generator)
        scales[torch.rand(scales.numel(), generator=generator) > density] = 0
        yield (values * scales.repeat_interleave(64)[:count] + 0.0).to(dtype)


def the_same_bits(
    dtype: torch.dtype, count: int, op: RedOpType, precision: Precision, density: float = 0.7
) -> None:
    given = list(vectors(dtype, count, density))
    whole = reduced(given, op, precision, whole=True)
    in_chunks = reduced(given, op, precision, whole=False)
    for ours, theirs in zip(in_chunks, whole, strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.float64])
@pytest.mark.parametrize("count", COUNTS)
def test_chunks_change_no_bit_of_a_sum(dtype: torch.dtype, count: int) -> None:
    the_same_bits(dtype, count, Op.SUM, Precision())


@pytest.mark.parametrize("precision", [Precision(bits) for bits in LANE_BITS] + [Precision(exact=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_change_no_bit_of_an_average_in_any_lanes(dtype: torch.dtype, precision: Precision) -> None:
    the_same_bits(dtype, 3 * CHUNK + 77, Op.AVG, precision)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1])
def test_chunks_change_no_bit_of_a_sparse_sum(density: float) -> None:
    """Of a whole this long the workers ask first which blocks are zero; of a chunk they do not."""
    the_same_bits(torch.float32, 20 * CHUNK + 77, Op.SUM, Precision(), density)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.float32, Op.MAX),
        (torch.bfloat16, Op.MIN),
        (torch.int64, Op.SUM),
        (torch.float32, Op.PRODUCT),
        (torch.uint8, Op.BXOR),
        (torch.int16, Op.BAND),
    ],
)
def test_chunks_change_no_bit_of_other_reductions(dtype: torch.dtype, op: RedOpType) -> None:
    the_same_bits(dtype, 2 * CHUNK + 5, op, Precision())


@pytest.mark.parametrize("count", [1, *COUNTS, 1000 * CHUNK + 1, 5000 * CHUNK + 255])
def test_chunks_are_whole_blocks_and_none_is_short(count: int) -> None:
    parts = chunks.chunks_of(count)
    assert parts[0].start == 0
    assert parts[-1].stop == count
    assert all(a.stop == b.start and b.start % SLOT_LANES == 0 for a, b in itertools.pairwise(parts))
    lengths = [part.stop - part.start for part in parts]
    assert max(lengths) <= CHUNK
    assert len(parts) == 1 or min(lengths) > CHUNK // 2 - SLOT_LANES
    assert (len(parts) > 1) == chunks.in_chunks(count)


def test_half_a_default_chunk_is_no_short_vector() -> None:
    assert DEFAULT % SLOT_LANES == 0
    assert max(GATHERED_LANES, EXACT_VALUES) < DEFAULT / 2 - SLOT_LANES


def test_all_chunks_are_begun_before_the_first_is_waited_for_and_each_goes_back_at_once() -> None:
    for precision in (Precision(), Precision(non_finite="raise")):
        group = InMemoryGroup(1)
        group.communicators[0].precision = precision
        vector = Elsewhere(torch.ones(2 * CHUNK + 256))
        collectives = LongCollectives(group.communicators[0])
        group.run([lambda c=collectives, v=vector: c.all_reduce_in_chunks(v)])  # type: ignore[misc]
        starts = [str(part.start) for part in chunks.chunks_of(vector.count)]
        assert len(starts) == 3
        looks = not precision.delivers
        assert vector.log == [
            *["bounds begun"] * looks,
            *(f"{start} begun" for start in starts),
            *["bounds here"] * looks,
            *(line for start in starts for line in (f"{start} here", f"{start} back")),
        ]


def raising() -> InMemoryGroup:
    group = InMemoryGroup(SIZE)
    for communicator in group.communicators:
        communicator.precision = Precision(non_finite="raise")
    return group


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_value_that_is_not_finite_is_named_and_nothing_is_overwritten(
    bad: float, dtype: torch.dtype
) -> None:
    count, where = 3 * CHUNK, 2 * CHUNK + 5
    given = [torch.ones(count, dtype=dtype) for _ in range(SIZE)]
    given[1][where] = bad
    group = raising()
    wide = torch.float32 if dtype == torch.bfloat16 else None
    caught: list[NonFiniteError] = []

    def work(rank: int) -> None:
        vector = Elsewhere(given[rank], wide)
        with pytest.raises(NonFiniteError) as error:
            LongCollectives(group.communicators[rank]).all_reduce_in_chunks(vector)
        caught.append(error.value)
        assert not any("back" in line for line in vector.log)

    group.run([lambda rank=rank: work(rank) for rank in range(SIZE)])  # type: ignore[misc]
    assert {(error.ranks, error.index) for error in caught} == {((1,), where)}
    assert f"element {where} of" in str(caught[0])


def test_a_rank_whose_tensor_is_not_on_a_device_is_in_another_operation() -> None:
    group = InMemoryGroup(2)
    one, other = (LongCollectives(communicator) for communicator in group.communicators)
    tensors = [torch.ones(2 * CHUNK), torch.ones(2 * CHUNK)]
    with pytest.raises(OutOfStepError):
        group.run(
            [
                lambda: one.all_reduce(tensors[0]),
                lambda: other.all_reduce_in_chunks(Elsewhere(tensors[1])),
            ]
        )


def scattered(op: RedOpType, dtype: torch.dtype, count: int, root: int | None, *, whole: bool) -> list[Any]:
    """Return what every worker gets of a reduce_scatter, or of a reduce to ``root``, in either way."""
    group = InMemoryGroup(SIZE)
    given = list(vectors(dtype, SIZE * count))
    outputs = [torch.full((count,), 5).to(dtype) for _ in range(SIZE)]
    wide = torch.float32 if dtype == torch.bfloat16 else None

    def work(rank: int) -> None:
        collectives = LongCollectives(group.communicators[rank])
        parts = list(given[rank].split(count))  # type: ignore[no-untyped-call]
        remote = [Elsewhere(part, wide) for part in parts]
        if root is not None:
            outputs[rank] = parts[0]
            if whole:
                collectives.reduce(parts[0], root, op)
            else:
                collectives.reduce_in_chunks(remote[0], root, op)
        elif whole:
            collectives.reduce_scatter(outputs[rank], parts, op)
        else:
            collectives.reduce_scatter_in_chunks(Elsewhere(outputs[rank], wide), remote, op)

    group.run([lambda rank=rank: work(rank) for rank in range(SIZE)])  # type: ignore[misc]
    return outputs


@pytest.mark.parametrize("root", [None, 2])
@pytest.mark.parametrize("count", [CHUNK + 1, 3 * CHUNK + 77])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.float32, Op.SUM),
        (torch.bfloat16, Op.AVG),
        (torch.float64, Op.SUM),
        (torch.int32, Op.SUM),
        (torch.int32, Op.MAX),
    ],
)
def test_chunks_change_no_bit_of_a_reduction_for_one_rank(
    dtype: torch.dtype, op: RedOpType, count: int, root: int | None
) -> None:
    whole = scattered(op, dtype, count, root, whole=True)
    for ours, theirs in zip(scattered(op, dtype, count, root, whole=False), whole, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_a_value_that_is_not_finite_is_named_with_its_part() -> None:
    count, group = 2 * CHUNK, raising()
    given = [torch.ones(SIZE * count) for _ in range(SIZE)]
    given[1][2 * count + CHUNK + 9] = float("nan")

    def work(rank: int) -> None:
        parts = [Elsewhere(part) for part in given[rank].split(count)]  # type: ignore[no-untyped-call]
        with pytest.raises(NonFiniteError, match=f"rank 1: .*element {CHUNK + 9} of the part of rank 2"):
            LongCollectives(group.communicators[rank]).reduce_scatter_in_chunks(parts[0], parts)

    group.run([lambda rank=rank: work(rank) for rank in range(SIZE)])  # type: ignore[misc]


def test_a_factor_that_makes_infinity_is_found_before_anything_is_overwritten() -> None:
    count, group = 2 * CHUNK, raising()
    given = [torch.ones(count) for _ in range(SIZE)]
    given[1][CHUNK + 9] = 1e10

    def work(rank: int) -> None:
        with pytest.raises(NonFiniteError, match=f"rank 1: .*element {CHUNK + 9} of a float32"):
            LongCollectives(group.communicators[rank]).all_reduce_in_chunks(
                Elsewhere(given[rank]), PremulSum(1e30)
            )

    group.run([lambda rank=rank: work(rank) for rank in range(SIZE)])  # type: ignore[misc]
    assert all(bool((one == 1).sum() >= count - 1) for one in given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_chunks_bring_every_bit_from_rank_to_rank(dtype: torch.dtype) -> None:
    count, group = 3 * CHUNK + 77, InMemoryGroup(SIZE)
    given = list(vectors(dtype, count))
    gathered = [[Elsewhere(torch.zeros_like(given[0])) for _ in given] for _ in given]
    spread = [Elsewhere(tensor.clone()) for tensor in given]

    def work(rank: int) -> None:
        collectives = LongCollectives(group.communicators[rank])
        collectives.all_gather_in_chunks(gathered[rank], Elsewhere(given[rank]))
        collectives.broadcast_in_chunks(spread[rank], 1)

    group.run([lambda rank=rank: work(rank) for rank in range(SIZE)])  # type: ignore[misc]
    for rank in range(SIZE):
        assert all(
            torch.equal(ours.tensor, theirs) for ours, theirs in zip(gathered[rank], given, strict=True)
        )
        assert torch.equal(spread[rank].tensor, given[1])
    assert not any("begun" in line for line in spread[0].log)
    assert not any("back" in line for line in spread[1].log)


def test_tensors_in_host_memory_travel_whole() -> None:
    assert not are_long(torch.ones(3 * CHUNK))
    assert not are_long_parts(torch.ones(3 * CHUNK), torch.ones(6 * CHUNK), 2)
