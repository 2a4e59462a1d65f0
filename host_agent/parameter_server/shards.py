# SPDX-License-Identifier: Apache-2.0
"""The shards of a model: which elements of which parameter are on which server."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Final

CUT: Final = 256
"""A parameter is cut at multiples of so many elements: values that share a scale stay together."""


@dataclass(frozen=True)
class ParameterInfo:
    """A trained parameter of the model; group: the optimizer's group of parameters that it is in."""

    name: str
    shape: tuple[int, ...]
    group: int = 0

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
        """Return a shape of its own, of one dimension where the parameter has one."""
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


@dataclass(frozen=True)
class Shards:
    """A model cut into one shard per server, of equal sizes to within 2 CUT elements.

    Attributes:
        servers: how many there are.
        pieces: of all of them, in the order of the model.

    Example::

        Shards.of([ParameterInfo("weight", (1000, 10)), ParameterInfo("bias", (10,))], servers=2).pieces
    """

    servers: int
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, parameters: Sequence[ParameterInfo], servers: int) -> "Shards":
        """Cut a model.

        Raises:
            ValueError: no parameters, one twice, or more servers than there is something for.
        """
        if len({parameter.name for parameter in parameters}) < len(parameters):
            raise ValueError("two parameters have one name")
        total = sum(parameter.size for parameter in parameters)
        pieces: list[Piece] = []
        before = 0
        for parameter in parameters:
            pieces += _cut(parameter, before, total, servers)
            before += parameter.size
        without = set(range(servers)) - {piece.server for piece in pieces}
        if servers < 1 or without:
            raise ValueError(
                f"{total:,} elements in {len(parameters)} parameters cannot be cut for {servers} servers"
            )
        return cls(servers, tuple(pieces))

    @cached_property
    def size(self) -> int:
        """Return the elements of the model."""
        return sum(piece.length for piece in self.pieces)

    def of_server(self, server: int) -> tuple[Piece, ...]:
        """Return one server's pieces."""
        return tuple(piece for piece in self.pieces if piece.server == server)

    def buckets(self, elements: int) -> tuple[tuple[Piece, ...], ...]:
        """Return the pieces in buckets of about so many elements, the last of the model first: their
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


def _cut(parameter: ParameterInfo, before: int, total: int, servers: int) -> Iterable[Piece]:
    """Yield a parameter's pieces. before: elements of the model that come before it."""
    edges = [0]
    for server in range(1, servers):
        wanted = server * total // servers - before
        edge = (wanted + CUT // 2) // CUT * CUT
        edges.append(min(max(edge, 0), parameter.size))
    edges.append(parameter.size)
    for server, (start, end) in enumerate(pairwise(edges)):
        if end > start:
            yield Piece(
                parameter.name, parameter.shape, parameter.group, start, end - start, before + start, server
            )
