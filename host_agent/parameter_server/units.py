# SPDX-License-Identifier: Apache-2.0
"""Units of a model: the runs of elements that lie on one server each, wherever a placement says."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.payload import PayloadError, Words
from weir.host_agent.parameter_server.shards import ParameterInfo

Integers = npt.NDArray[np.int64]

_BITS, _NEAR, _FAR = range(3)  # forms of a list of units: a bit each, 16-bit gaps, 32-bit gaps
_HEAD = 2


@dataclass(frozen=True, eq=False)
class Units:
    """A flat model cut into units: the elements of u are ``starts[u]`` to ``starts[u + 1]``, int64."""

    starts: Integers

    @classmethod
    def of(cls, parameters: Sequence[ParameterInfo], widths: Sequence[int]) -> "Units":
        """Cut every parameter into units of its width; the last of each may be shorter.

        Raises:
            ValueError: not a width of at least 1 for each parameter.
        """
        if len(widths) != len(parameters) or min(widths, default=1) < 1:
            raise ValueError(f"{len(parameters)} parameters have units of {list(widths)} elements")
        starts, before = [np.zeros(0, np.int64)], 0
        for parameter, width in zip(parameters, widths, strict=True):
            starts.append(np.arange(before, before + parameter.size, width, dtype=np.int64))
            before += parameter.size
        return cls(np.concatenate([*starts, [before]]).astype(np.int64))

    def __len__(self) -> int:
        return self.starts.size - 1

    @cached_property
    def sizes(self) -> Integers:
        """Return the elements of each unit."""
        return np.diff(self.starts)

    def elements(self, units: Integers) -> Integers:
        """Return the elements of some units, one unit after another."""
        sizes = self.sizes[units]
        before = np.cumsum(sizes) - sizes
        return np.repeat(self.starts[units] - before, sizes) + np.arange(sizes.sum())

    def encode(self, units: Integers) -> Words:
        """Write down which units, ascending, are meant: by a bit each, or by their distances."""
        gaps = np.diff(units, prepend=0)
        narrow = not gaps.size or int(gaps.max()) < 1 << 16
        sizes = {_BITS: -(-len(self) // 32), _NEAR: -(-units.size // 2), _FAR: units.size}
        form = min((_BITS, _NEAR if narrow else _FAR), key=lambda form: sizes[form])
        if form == _BITS:
            chosen = np.zeros(32 * sizes[_BITS], np.bool_)
            chosen[units] = True
            body = np.packbits(chosen, bitorder="little").view(np.uint32)
        elif form == _NEAR:
            body = np.pad(gaps, (0, gaps.size % 2)).astype(np.uint16).view(np.uint32)
        else:
            body = gaps.astype(np.uint32)
        return np.concatenate([np.array([form, units.size], np.uint32), body])

    def decode(self, words: Words) -> Integers:
        """Return the units that ``encode`` wrote down. Raises PayloadError."""
        if words.size < _HEAD:
            raise PayloadError(f"a list of units of {words.size} words is too short for its head")
        form, count = map(int, words[:_HEAD])
        body = np.ascontiguousarray(words[_HEAD:])
        if form == _BITS and body.size == -(-len(self) // 32):
            units = np.flatnonzero(np.unpackbits(body.view(np.uint8), bitorder="little")).astype(np.int64)
        elif form in (_NEAR, _FAR):
            gaps = (body.view(np.uint16) if form == _NEAR else body)[:count].astype(np.int64)
            if gaps[1:].size and not gaps[1:].all():
                raise PayloadError("a list names a unit twice")
            units = np.cumsum(gaps)
        else:
            raise PayloadError(f"lists of units of form {form} and {body.size} words are not known here")
        if units.size != count or (count and units[-1] >= len(self)):
            raise PayloadError(f"a list of {count} of {len(self)} units names {units.size}, or one beyond")
        return units
