# SPDX-License-Identifier: Apache-2.0
"""Pulls: what the servers changed of the model, one packet on their links, multicast by the switch.

A server sends which bits of its words have changed since it last sent them (exclusive or). So workers have
the servers' model bit for bit, and blocks in which nothing changed are zero, which no packet carries.
"""

import numpy as np
import torch

from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.torch.parameter_server.push import layout_of
from weir.host_agent.torch.parameter_server.shard_optimizer import ShardOptimizer
from weir.host_agent.torch.parameter_server.team import Team
from weir.wire.definition import SLOT_LANES, Op


class Pull:
    """Brings the servers' changes to all workers; every member makes the same calls."""

    def __init__(self, team: Team) -> None:
        self._team = team
        terms: Terms = team.terms
        self._pieces = terms.shards().pieces
        self._layout = layout_of(0, self._pieces)
        senders = np.array([~terms.rank_of(piece.server) for piece in self._pieces], np.int16)
        self._audience = senders[self._layout.owners]

    def server_send(self, shard: ShardOptimizer, sent: torch.Tensor, server: int) -> None:
        """Send what has changed of a shard since ``sent``, which becomes what it is now."""
        words = torch.zeros(self._layout.length, dtype=torch.int32)
        now, before = shard.model.view(torch.int32), sent.view(torch.int32)
        for piece, segment in zip(self._pieces, self._layout, strict=True):
            if piece.server == server:
                place = shard.place(piece.title)
                torch.bitwise_xor(now[place], before[place], out=words[segment.in_vector])
        self._reduce(words)
        sent.copy_(shard.model)

    def worker_take(self, model: torch.Tensor) -> None:
        """Bring ``model``, flat and as the servers last sent it, up to date."""
        words = torch.zeros(self._layout.length, dtype=torch.int32)
        self._reduce(words)
        bits = model.view(torch.int32)
        for piece, segment in zip(self._pieces, self._layout, strict=True):
            bits[piece.in_model] ^= words[segment.in_vector]

    def _reduce(self, words: torch.Tensor) -> None:
        lanes, communicator = words.numpy().view(np.uint32), self._team.connection
        self._team.run(
            "weir.parameter_server.pull",
            (lanes.size,),
            lambda: communicator.reduce_lanes(lanes, Op.OR, SLOT_LANES, audience=self._audience),
        )
