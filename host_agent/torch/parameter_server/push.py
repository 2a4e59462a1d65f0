# SPDX-License-Identifier: Apache-2.0
"""Pushes: buckets of gradients that are summed on their way to the servers that have the parameters."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from weir.host_agent.collectives.float_sum import sum_float64
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import Exchanged, GradientExchange, Servers
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier
from weir.host_agent.parameter_server.shards import Piece, Shards
from weir.host_agent.parameter_server.terms import Method
from weir.host_agent.torch.parameter_server.team import Team


class Push:
    """The gradient step of a team: every member makes the same calls, in which servers add nothing.

    Attributes:
        buckets: the pieces that are pushed together, in the order in which they are.
        exchange: the gradient step.
    """

    def __init__(self, team: Team) -> None:
        terms = team.terms
        shards = terms.shards()
        self._team = team
        self.buckets = shards.buckets(terms.bucket_bytes // 4)
        self.exchange = make_exchange(terms.method)
        pieces = _Pieces(shards)
        servers = Servers(
            terms.servers, {piece.title: terms.rank_of(piece.server) for piece in shards.pieces}
        )
        self.exchange.join(pieces, team.connection, team.slots, servers)
        self._layouts = [layout_of(index, bucket) for index, bucket in enumerate(self.buckets)]

    def worker_push(self, index: int, gradients: Mapping[str, torch.Tensor]) -> Exchanged:
        """Push a bucket: the gradients of its parameters, by name."""
        bucket = torch.cat(
            [gradients[piece.name].reshape(-1)[piece.in_parameter] for piece in self.buckets[index]]
        )
        return self._exchanged(index, bucket)

    def server_take(self, index: int, server: int) -> dict[str, torch.Tensor]:
        """Take part in the push of a bucket, and return the averages of this server's pieces, by title."""
        bucket = torch.empty(sum(piece.length for piece in self.buckets[index]))
        self._exchanged(index, bucket)
        found, start = {}, 0
        for piece in self.buckets[index]:
            if piece.server == server:
                found[piece.title] = bucket[start : start + piece.length]
            start += piece.length
        return found

    def norm(self, gradients: Mapping[str, torch.Tensor]) -> float:
        """Return the norm of all servers' gradients together; workers have none."""
        squares = np.zeros(1)
        for gradient in gradients.values():
            squares += float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
        name = "the squared norm of the gradient"
        self._team.run(
            "weir.parameter_server.norm",
            (),
            lambda: sum_float64(self._team.connection, squares, lambda _index: name),
        )
        return math.sqrt(squares[0])

    def _exchanged(self, index: int, bucket: torch.Tensor) -> Exchanged:
        layout, last = self._layouts[index], index == len(self.buckets) - 1
        names = zlib.crc32(" ".join(segment.name for segment in layout).encode())
        facts = (index, layout.elements, names, self.exchange.settings)
        return self._team.run(
            "weir.parameter_server.push", facts, lambda: self.exchange.exchange(layout, bucket, last)
        )


class _Pieces:
    """The pieces of a model as the gradient step knows a module: names, sizes and dimensions, no values."""

    def __init__(self, shards: Shards) -> None:
        with torch.device("meta"):
            self._named = [
                (piece.title, torch.nn.Parameter(torch.empty(piece.form))) for piece in shards.pieces
            ]

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the pieces in the order of the model."""
        return iter(self._named)


def layout_of(index: int, pieces: Sequence[Piece]) -> BucketLayout:
    """Return the layout of a bucket of pieces."""
    with torch.device("meta"):
        forms = [torch.empty(piece.form) for piece in pieces]
    return BucketLayout.of(index, [piece.title for piece in pieces], forms, SCALE_BLOCK)


def make_exchange(method: Method) -> GradientExchange:
    """Return the gradient step of a method. ValueError for what there is not or does not fit together."""
    options = SparsifierOptions(
        method.density, method.threshold, method.block, method.warmup_steps, method.seed
    )
    return GradientExchange(
        create_sparsifier(method.sparsifier, options),
        LossPolicy.of(0.0),
        encoding=method.encoding,
        exclude=method.exclude,
        lane_bits=method.lane_bits,
        lane_error=method.lane_error,
    )
