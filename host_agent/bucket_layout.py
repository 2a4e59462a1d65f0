# SPDX-License-Identifier: Apache-2.0
"""Where each parameter's gradient lies in a bucket, and in the vector that is reduced for it.

In the reduced vector each parameter starts on a block of its own. So what is chosen, scaled and summed for a
parameter depends on that parameter alone, not on which bucket DDP put it in: DDP rebuilds its buckets after
the first iteration, and once more after a restart from a checkpoint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class Segment:
    """One parameter: its name and shape, its place in the bucket and its place in the reduced vector."""

    name: str
    shape: tuple[int, ...]
    length: int
    bucket_start: int
    vector_start: int

    @property
    def in_bucket(self) -> slice:
        """Its elements of the bucket."""
        return slice(self.bucket_start, self.bucket_start + self.length)

    @property
    def in_vector(self) -> slice:
        """Its elements of the vector, padding left out."""
        return slice(self.vector_start, self.vector_start + self.length)


@dataclass(frozen=True)
class BucketLayout:
    """All parameters of one bucket, in its order. length: of the reduced vector, a multiple of the block."""

    index: int
    block: int
    length: int
    segments: tuple[Segment, ...]

    @classmethod
    def of(
        cls, index: int, names: Sequence[str], parameters: Sequence[torch.Tensor], block: int
    ) -> "BucketLayout":
        """The layout of bucket ``index`` that holds these parameters' gradients one after another."""
        segments, bucket_start, vector_start = [], 0, 0
        for name, parameter in zip(names, parameters, strict=True):
            length = parameter.numel()
            segments.append(Segment(name, tuple(parameter.shape), length, bucket_start, vector_start))
            bucket_start += length
            vector_start += -(-length // block) * block
        return cls(index, block, vector_start, tuple(segments))

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    def blocks_of(self, segment: Segment) -> slice:
        """A parameter's blocks of the vector: no other parameter has a part of them."""
        first = segment.vector_start // self.block
        return slice(first, first - (-segment.length // self.block))

    @cached_property
    def owners(self) -> npt.NDArray[np.intp]:
        """For each block of the vector, the index of the segment it is of."""
        counts = [-(-segment.length // self.block) for segment in self.segments]
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def block_lengths(self) -> torch.Tensor:
        """For each block, how many of its lanes are elements of its parameter, not padding; float32."""
        lengths = torch.full((self.length // self.block,), float(self.block))
        for segment in self.segments:
            if remainder := segment.length % self.block:
                lengths[self.blocks_of(segment).stop - 1] = remainder
        return lengths

    def spread(self, bucket: torch.Tensor) -> torch.Tensor:
        """The bucket (flat, any float dtype) as a new vector: float32, padded with zeros."""
        vector = torch.zeros(self.length, dtype=torch.float32)
        for segment in self.segments:
            vector[segment.in_vector] = bucket[segment.in_bucket]
        return vector

    def collect(self, vector: torch.Tensor, bucket: torch.Tensor) -> None:
        """Overwrites the bucket by the vector's elements: the inverse of ``spread``."""
        for segment in self.segments:
            bucket[segment.in_bucket] = vector[segment.in_vector]

    def describe(self, index: int) -> str:
        """In an error message: what element ``index`` of the vector is."""
        owner = self.segments[0]
        for segment in self.segments:
            if segment.vector_start <= index:
                owner = segment
        return (
            f"gradient of parameter {owner.name!r} of shape {owner.shape} "
            f"(element {index - owner.vector_start}, bucket {self.index})"
        )
