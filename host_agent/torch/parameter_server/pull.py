# SPDX-License-Identifier: Apache-2.0
"""Pulls: what the servers changed of the model, one packet on their links, multicast by the switch.

A server sends which bits of its words have changed since it last sent them (exclusive or). So workers have
the servers' model bit for bit, and blocks in which nothing changed are zero, which no packet carries.
"""

from collections.abc import Sequence

import numpy as np
import torch

from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.parameter_server.shards import Piece
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.torch.parameter_server.rounds import Rider, Riding
from weir.host_agent.torch.parameter_server.shard_optimizer import ShardOptimizer


class Pull:
    """The changes of one bucket of pieces, from the servers that have them to everybody else.

    Args:
        terms: of the job.
        pieces: of the bucket.
        layout: of the bucket.
    """

    def __init__(self, terms: Terms, pieces: Sequence[Piece], layout: BucketLayout) -> None:
        self._pieces, self._layout = tuple(pieces), layout
        self._senders = np.array([terms.rank_of(piece.server) for piece in pieces], np.int16)[layout.owners]

    def send(self, shard: ShardOptimizer, sent: torch.Tensor, server: int) -> Riding:
        """Send what a server has changed of its pieces since ``sent``, which becomes what they are now."""
        words = torch.zeros(self._layout.length, dtype=torch.int32)
        now, before = shard.model.view(torch.int32), sent.view(torch.int32)
        for piece, segment in zip(self._pieces, self._layout, strict=True):
            if piece.server == server:
                place = shard.place(piece.title)
                torch.bitwise_xor(now[place], before[place], out=words[segment.in_vector])
                before[place] = now[place]
        yield self._rider(words)

    def take(self, model: torch.Tensor) -> Riding:
        """Bring the bucket's elements of ``model``, flat and as the servers last sent it, up to date."""
        words = torch.zeros(self._layout.length, dtype=torch.int32)
        yield self._rider(words)
        bits = model.view(torch.int32)
        for piece, segment in zip(self._pieces, self._layout, strict=True):
            bits[piece.in_model] ^= words[segment.in_vector]

    def _rider(self, words: torch.Tensor) -> Rider:
        return Rider(words.numpy().view(np.uint32), self._senders)
