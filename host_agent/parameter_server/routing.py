# SPDX-License-Identifier: Apache-2.0
"""The routing table: which server has which part of a model. A migration is a new table.

A model is flat: its parameters one after another. It is cut into units, which lie on one server each: rows of
an embedding whose gradients are sparse, and 256 elements of any other parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.payload import PayloadError, Words

Integers = npt.NDArray[np.int64]

CUT: Final = 256
"""Elements of a unit, and of values that share a scale: these stay together."""

NO_MOVES: Final[Integers] = np.zeros((0, 2), np.int64)

_BITS, _NEAR, _FAR, _RUNS = range(4)
"""Forms of a list of units: a bit each; 16-bit gaps; 32-bit gaps; the first of each run, and how many."""

_HEAD: Final = 2

MOST_ELEMENTS: Final = 1 << 36
"""Of a model: 256 GiB of float32."""


@dataclass(frozen=True)
class ParameterInfo:
    """A trained parameter of the model.

    Attributes:
        group: the optimizer's group of parameters that it is in.
        row: elements of a row, which is a unit, of an embedding whose gradients are sparse; 0 of others.
    """

    name: str
    shape: tuple[int, ...]
    group: int = 0
    row: int = 0

    @property
    def size(self) -> int:
        """Return its elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Piece:
    """A run of a parameter's elements that is on one server.

    Attributes:
        name, shape, group: of the parameter.
        start, length: its elements of the parameter, flat.
        offset: the first of them in the flat model.
        server: the index of the server that has it.
    """

    name: str
    shape: tuple[int, ...]
    group: int
    start: int
    length: int
    offset: int
    server: int

    @property
    def whole(self) -> bool:
        """Return whether it is all of the parameter."""
        return self.length == prod(self.shape)

    @property
    def title(self) -> str:
        """Return its name: that of the parameter, with the elements unless it is all of them."""
        return self.name if self.whole else f"{self.name}[{self.start}:{self.start + self.length}]"

    @property
    def form(self) -> tuple[int, ...]:
        """Shape of its own, of one dimension where the parameter has one."""
        if self.whole:
            return self.shape
        return (self.length,) if len(self.shape) == 1 else (1, self.length)

    @property
    def in_parameter(self) -> slice:
        """Return its elements of the flat parameter."""
        return slice(self.start, self.start + self.length)

    @property
    def in_model(self) -> slice:
        """Return its elements of the flat model."""
        return slice(self.offset, self.offset + self.length)


def runs_from(begins: Integers, lengths: Integers) -> Integers:
    """Return runs of consecutive numbers, one run after another: each from its beginning, of its length."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(begins - before, lengths) + np.arange(lengths.sum())


@dataclass(frozen=True, eq=False)
class Units:
    """A flat model cut into units.

    Attributes:
        parameters: of the model, in its order.
        starts: int64[units + 1]; the elements of u are ``starts[u]`` to ``starts[u + 1]``.
        of_parameter: int64[units], the parameter that each is of.
    """

    parameters: tuple[ParameterInfo, ...]
    starts: Integers
    of_parameter: Integers

    @classmethod
    def of(cls, parameters: Sequence[ParameterInfo]) -> "Units":
        """Cut every parameter into units; the last of each may be shorter.

        Raises:
            ValueError: two parameters have one name, or the model is too large for servers' memory.
        """
        if len({parameter.name for parameter in parameters}) < len(parameters):
            raise ValueError("two parameters have one name")
        if (size := sum(parameter.size for parameter in parameters)) > MOST_ELEMENTS:
            raise ValueError(f"a model of {size:,} elements; servers take at most {MOST_ELEMENTS:,}")
        starts, before = [np.zeros(0, np.int64)], 0
        for parameter in parameters:
            width = parameter.row or CUT
            starts.append(np.arange(before, before + parameter.size, width, dtype=np.int64))
            before += parameter.size
        counts = [part.size for part in starts[1:]]
        return cls(
            tuple(parameters),
            np.concatenate([*starts, [before]]).astype(np.int64),
            np.repeat(np.arange(len(counts)), counts).astype(np.int64),
        )

    def __len__(self) -> int:
        return self.starts.size - 1

    @property
    def size(self) -> int:
        """Elements of the model."""
        return int(self.starts[-1])

    @cached_property
    def sizes(self) -> Integers:
        """Elements of each unit."""
        return np.diff(self.starts)

    @cached_property
    def all(self) -> Integers:
        """Return all units."""
        return np.arange(len(self))

    @cached_property
    def firsts(self) -> Integers:
        """First unit of each parameter."""
        return np.searchsorted(self.of_parameter, np.arange(len(self.parameters))).astype(np.int64)

    def elements(self, units: Integers) -> Integers:
        """Return the elements of some units, one unit after another."""
        return runs_from(self.starts[units], self.sizes[units])

    def encode(self, units: Integers) -> Words:
        """Write down which units, ascending, are meant, in the shortest of the forms."""
        gaps = np.diff(units, prepend=0)
        narrow = not gaps.size or int(gaps.max()) < 1 << 16
        begins = np.flatnonzero(np.diff(units, prepend=-2) != 1)
        sizes = {
            _BITS: -(-len(self) // 32),
            _NEAR: -(-units.size // 2),
            _FAR: units.size,
            _RUNS: 2 * begins.size,
        }
        form = min((_RUNS, _BITS, _NEAR if narrow else _FAR), key=lambda form: sizes[form])
        if form == _BITS:
            chosen = np.zeros(32 * sizes[_BITS], np.bool_)
            chosen[units] = True
            body = np.packbits(chosen, bitorder="little").view(np.uint32)
        elif form == _NEAR:
            body = np.pad(gaps, (0, gaps.size % 2)).astype(np.uint16).view(np.uint32)
        elif form == _FAR:
            body = gaps.astype(np.uint32)
        else:
            runs = np.diff(begins, append=units.size)
            body = np.stack([units[begins], runs], axis=1).astype(np.uint32).reshape(-1)
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
            units = np.cumsum(gaps)
        elif form == _RUNS and not body.size % 2 and body[1::2].sum(dtype=np.int64) == count <= len(self):
            units = runs_from(*body.reshape(-1, 2).astype(np.int64).T)
        else:
            raise PayloadError(f"lists of units of form {form} and {body.size} words are not known here")
        if (np.diff(units) <= 0).any():
            raise PayloadError("a list names a unit twice")
        if units.size != count or (count and units[-1] >= len(self)):
            raise PayloadError(f"a list of {count} of {len(self)} units names {units.size}, or one beyond")
        return units


@dataclass(frozen=True, eq=False)
class Table:
    """A routing table.

    Attributes:
        units: of the model.
        servers: how many there are.
        owner: int16[units], the server of each.
        epoch: number of the table; it grows by one with each migration.
        changed: int32[units], the epoch in which each came to its server.

    Example::

        Table.shares([ParameterInfo("weight", (1000, 10)), ParameterInfo("bias", (10,))], servers=2).pieces
    """

    units: Units
    servers: int
    owner: npt.NDArray[np.int16]
    epoch: int = 0
    changed: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        if not self.changed.size:
            object.__setattr__(self, "changed", np.zeros(len(self.units), np.int32))

    @classmethod
    def shares(cls, parameters: Sequence[ParameterInfo], servers: int) -> "Table":
        """Give each server a contiguous share of the model, of equal sizes to within two units.

        Raises:
            ValueError: no parameters, one twice, or more servers than there is something for.
        """
        units = Units.of(parameters)
        owner, before = np.zeros(len(units), np.int16), 0
        for first, parameter in zip(units.firsts.tolist(), parameters, strict=True):
            starts = np.arange(0, parameter.size, parameter.row or CUT)
            wanted = np.arange(1, max(servers, 1)) * units.size // max(servers, 1) - before
            edges = np.clip((wanted + CUT // 2) // CUT * CUT, 0, parameter.size)
            owner[first : first + starts.size] = np.searchsorted(edges, starts, side="right")
            before += parameter.size
        if servers < 1 or np.unique(owner).size < servers:
            raise ValueError(
                f"{units.size:,} elements in {len(parameters)} parameters cannot be cut for {servers} servers"
            )
        return cls(units, servers, owner)

    @classmethod
    def placed(cls, units: Units, servers: int, owner: npt.ArrayLike) -> "Table":
        """Give each unit to the server that ``owner`` says. ValueError: it does not fit the model."""
        table = np.asarray(owner, np.int64)
        if table.shape != (len(units),) or (table.size and not 0 <= table.min() <= table.max() < servers):
            raise ValueError(
                f"a placement of {table.size} units on servers {table.min(initial=0)} to "
                f"{table.max(initial=0)}: the model has {len(units)} units, and there are {servers} servers"
            )
        return cls(units, servers, table.astype(np.int16))

    def of(self, server: int) -> Integers:
        """Return a server's units."""
        return np.flatnonzero(self.owner == server)

    def since(self, epoch: int) -> Integers:
        """Return int64[n, 2]: the units that have changed their server since an epoch, and where they are."""
        units = np.flatnonzero(self.changed > epoch)
        return np.stack([units, self.owner[units].astype(np.int64)], axis=1)

    def moved(self, moves: Integers, epoch: int) -> "Table":
        """Return the table after some moves, which leads to an epoch. ValueError: they make no sense.

        Moves over several epochs may bring a unit back to where it was: it has changed, too.
        """
        units, servers = moves[:, 0], moves[:, 1]
        if units.size and not (0 <= units.min() <= units.max() < len(self.units)):
            raise ValueError(f"moves are of units {units.min()} to {units.max()} of {len(self.units)}")
        if servers.size and not (0 <= servers.min() <= servers.max() < self.servers):
            raise ValueError(f"moves go to servers {servers.min()} to {servers.max()} of {self.servers}")
        owner, changed = self.owner.copy(), self.changed.copy()
        owner[units] = servers
        changed[units] = epoch
        return Table(self.units, self.servers, owner, epoch, changed)

    @property
    def size(self) -> int:
        """Elements of the model."""
        return self.units.size

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Longest runs of a parameter that are on one server, in the order of the model."""
        if not len(self.units):
            return ()
        owner, of = self.owner.astype(np.int64), self.units.of_parameter
        begins = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(of, prepend=-1) != 0))
        starts, ends = self.units.starts[begins], self.units.starts[np.append(begins[1:], len(self.units))]
        heads = self.units.starts[self.units.firsts]
        found = []
        for begin, start, end in zip(begins.tolist(), starts.tolist(), ends.tolist(), strict=True):
            index = int(of[begin])
            info, within = self.units.parameters[index], start - int(heads[index])
            found.append(
                Piece(info.name, info.shape, info.group, within, end - start, start, int(owner[begin]))
            )
        return tuple(found)

    def of_server(self, server: int) -> tuple[Piece, ...]:
        """Return one server's pieces."""
        return tuple(piece for piece in self.pieces if piece.server == server)

    def buckets(self, elements: int) -> tuple[tuple[Piece, ...], ...]:
        """Return the pieces in buckets of about this many elements, the last of the model first: their
        gradients are ready first. A piece that is larger is a bucket of its own.
        """
        found: list[list[Piece]] = [[]]
        filled = 0
        for piece in reversed(self.pieces):
            if found[-1] and filled + piece.length > elements:
                found.append([])
                filled = 0
            found[-1].append(piece)
            filled += piece.length
        return tuple(map(tuple, found))
