# SPDX-License-Identifier: Apache-2.0
"""Vectors that are reduced chunk by chunk: the bits of the whole, the order of copies, and errors."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from weir.host_agent.collectives import Collectives, InMemoryGroup, NonFiniteError, chunks
from weir.host_agent.collectives.float_sum import EXACT_VALUES, GATHERED_LANES
from weir.host_agent.collectives.in_memory import OutOfStepError
from weir.host_agent.collectives.packing import LANE_BITS, Precision
from weir.host_agent.collectives.reductions import RedOpType
from weir.host_agent.torch.device_vector import is_long
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

    values: torch.Tensor
    wide: torch.dtype | None = None
    log: list[str] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def count(self) -> int:
        return self.values.numel()

    def bounds(self) -> Callable[[], torch.Tensor]:
        self.log.append("bounds begun")
        return lambda: self._copied("bounds", torch.stack(torch.aminmax(self.values)))

    def fetch(self, part: slice) -> Callable[[], torch.Tensor]:
        self.log.append(f"{part.start} begun")
        return lambda: self._copied(f"{part.start}", self.values[part].to(self.wide or self.dtype, copy=True))

    def replace(self, part: slice, copy: torch.Tensor, result: torch.Tensor) -> None:
        self.log.append(f"{part.start} back")
        assert copy.numel() == result.numel() == part.stop - part.start
        self.values[part] = result

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
        collectives = Collectives(communicator)
        if whole:
            collectives.all_reduce(tensor, op)
        else:
            is_narrow = tensor.dtype in (torch.float16, torch.bfloat16) and op in (Op.SUM, Op.AVG)
            vector = Elsewhere(tensor, torch.float32 if is_narrow else None)
            collectives.all_reduce_in_chunks(tensor, vector, op)

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
    group = InMemoryGroup(1)
    vector = Elsewhere(torch.ones(2 * CHUNK + 256))
    collectives = Collectives(group.communicators[0])
    group.run([lambda: collectives.all_reduce_in_chunks(vector.values, vector)])
    starts = [str(part.start) for part in chunks.chunks_of(vector.count)]
    assert len(starts) == 3
    assert vector.log == [
        "bounds begun",
        *(f"{start} begun" for start in starts),
        "bounds here",
        *(line for start in starts for line in (f"{start} here", f"{start} back")),
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_value_that_is_not_finite_is_named_and_nothing_is_overwritten(
    bad: float, dtype: torch.dtype
) -> None:
    count, where = 3 * CHUNK, 2 * CHUNK + 5
    given = [torch.ones(count, dtype=dtype) for _ in range(SIZE)]
    given[1][where] = bad
    group = InMemoryGroup(SIZE)
    wide = torch.float32 if dtype == torch.bfloat16 else None
    caught: list[NonFiniteError] = []

    def work(rank: int) -> None:
        vector = Elsewhere(given[rank], wide)
        with pytest.raises(NonFiniteError) as error:
            Collectives(group.communicators[rank]).all_reduce_in_chunks(given[rank], vector)
        caught.append(error.value)
        assert not any("back" in line for line in vector.log)

    group.run([lambda rank=rank: work(rank) for rank in range(SIZE)])  # type: ignore[misc]
    assert {(error.ranks, error.index) for error in caught} == {((1,), where)}
    assert f"element {where} of" in str(caught[0])


def test_a_rank_whose_tensor_is_not_on_a_device_is_in_another_operation() -> None:
    group = InMemoryGroup(2)
    one, other = (Collectives(communicator) for communicator in group.communicators)
    tensors = [torch.ones(2 * CHUNK), torch.ones(2 * CHUNK)]
    with pytest.raises(OutOfStepError):
        group.run(
            [
                lambda: one.all_reduce(tensors[0]),
                lambda: other.all_reduce_in_chunks(tensors[1], Elsewhere(tensors[1])),
            ]
        )


def test_tensors_in_host_memory_travel_whole() -> None:
    assert not is_long(torch.ones(3 * CHUNK))
