# SPDX-License-Identifier: Apache-2.0
"""Pulls: what the servers changed of the model, one packet on their links, multicast by the switch.

A server sends which bits of its words have changed since it last sent them (exclusive or). So workers have
the servers' model bit for bit, and blocks in which nothing changed are zero, which no packet carries. Where
what changes is scattered it sends a mask instead, and then the words of the blocks that it selects. Which of
the two, and how fine the mask is, follows from what was changed in the steps before, by its cost.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from weir.host_agent.collectives.dtypes import LANE_BYTES, Lanes
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import Encoding, EncodingPlan, Selection
from weir.host_agent.compression.encodings.cost import headers
from weir.host_agent.compression.encodings.pyramid import LEVELS, counts
from weir.host_agent.compression.encodings.shared_mask import words_for, write_mask
from weir.host_agent.parameter_server.routing import Piece
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.parameter_server.value_filter import above
from weir.host_agent.torch.parameter_server.rounds import Piggyback, PiggybackSteps, Words, runs_of
from weir.host_agent.torch.parameter_server.shard_optimizer import ShardOptimizer
from weir.wire.definition import SLOT_LANES

_COUNTED: Final = 8  # steps from one count of changes to the next
_HYSTERESIS: Final = 0.9  # a form that costs less than this share of the present one replaces it


class ChangeForecast:
    """One server's forecast of the cheapest form of its changes, from exact counts of those before.

    Attributes:
        mask_block: elements per bit of the mask; None: no mask.
    """

    def __init__(self) -> None:
        self.mask_block: int | None = None
        self._blocks = np.zeros(LEVELS, np.int64)  # of 2^k elements in which something has changed
        self._elements = self._step = 0

    @property
    def is_due(self) -> bool:
        """Return whether the changes of this step must be counted."""
        return self._step % _COUNTED <= 1

    def count(self, changed: torch.Tensor) -> None:
        """Take in a piece: flat, float32, zero where nothing has changed."""
        self._blocks += array_of(counts(changed))
        self._elements += changed.numel()

    def end_step(self) -> None:
        """Decide how the next step's changes are sent."""
        if self.is_due and self._elements:
            packet = SLOT_LANES * LANE_BYTES + headers(SLOT_LANES)
            costs: dict[int | None, float] = {None: self._blocks[-1] * packet}
            for level, blocks in enumerate(self._blocks):
                lanes = (int(blocks) << level) + self._elements / (32 << level)
                costs[1 << level] = lanes / SLOT_LANES * packet
            best = min(costs, key=costs.__getitem__)
            if costs[best] < _HYSTERESIS * costs[self.mask_block]:
                self.mask_block = best
            self._blocks[:] = 0
            self._elements = 0
        self._step += 1


class Pull:
    """The changes of one bucket of pieces, from the servers that have them to everybody else.

    Args:
        terms: of the job.
        pieces: of the bucket.
        layout: of the bucket.
    """

    def __init__(self, terms: Terms, pieces: Sequence[Piece], layout: BucketLayout) -> None:
        self._pieces, self._layout = tuple(pieces), layout
        self._ranks = [terms.rank_of(piece.server) for piece in pieces]

    def send(
        self,
        shard: ShardOptimizer,
        sent: torch.Tensor,
        server: int,
        mask_block: int | None,
        forecast: ChangeForecast,
        threshold: float = 0.0,
        block: int = 1,
    ) -> PiggybackSteps:
        """Send what a server has changed of its pieces since ``sent``, which becomes what is known of them.

        mask_block: the form, None: no mask. forecast: takes in what has changed, when it is due. threshold,
        block: of Parameter Flow's filter; what has changed by less waits.
        """
        changes = torch.empty(self._layout.length, dtype=torch.int32)  # others' pieces stay unwritten
        now, before = shard.model.view(torch.int32), sent.view(torch.int32)
        mine = [
            (piece, segment)
            for piece, segment in zip(self._pieces, self._layout, strict=True)
            if piece.server == server
        ]
        for piece, segment in mine:
            place = shard.place(piece.title)
            changed = torch.bitwise_xor(now[place], before[place], out=changes[segment.in_vector])
            if threshold:
                moved = shard.model[place] - sent[place]
                changed[torch.from_numpy(~above(array_of(moved), threshold, block))] = 0
                before[place] ^= changed
            else:
                before[place] = now[place]
        if forecast.is_due or mask_block is not None:
            flags = changes.ne(0).float()
        if forecast.is_due:
            for _, segment in mine:
                forecast.count(flags[segment.in_vector])
        if mask_block is None:
            yield self._piggyback(changes, self._layout)
            return
        masks, places, said = self._masks(mask_block)
        own = {piece.title: np.zeros(masks[places[piece.title]].size, np.uint32) for piece, _ in mine}
        for piece, segment in mine:
            write_mask(flags[segment.in_vector], mask_block, own[piece.title])
            masks[places[piece.title]] = own[piece.title]
        yield said
        for title, words in own.items():  # what nobody sends to this member may hold anything now
            masks[places[title]] = words
        selection = self._selection(mask_block, masks, places)
        vector = torch.zeros(self._layout.length)
        for piece, segment in mine:
            vector[segment.in_vector] = sent[shard.place(piece.title)]
        yield self._piggyback(selection.pack(vector).view(torch.int32), selection.layout)

    def take(self, model: torch.Tensor, mask_block: int | None) -> PiggybackSteps:
        """Bring the bucket's elements of ``model``, flat and as the servers last sent it, up to date."""
        pairs = list(zip(self._pieces, self._layout, strict=True))
        if mask_block is None:
            bits = array_of(model.view(torch.int32))
            yield [
                Words(bits[piece.in_model], rank, changes=True)
                for piece, rank in zip(self._pieces, self._ranks, strict=True)
            ]
            return
        masks, places, said = self._masks(mask_block)
        yield said
        selection = self._selection(mask_block, masks, places)
        packed = torch.zeros(selection.layout.length, dtype=torch.int32)
        yield self._piggyback(packed, selection.layout)
        vector = torch.zeros(self._layout.length)
        for piece, segment in pairs:
            vector[segment.in_vector] = model[piece.in_model]
        for part in selection.parts:
            part.unpack(vector[part.source.in_vector], packed.view(torch.float32)[part.in_packed])
        for piece, segment in pairs:
            model[piece.in_model] = vector[segment.in_vector]

    def _piggyback(self, words: torch.Tensor, layout: BucketLayout) -> Piggyback:
        """Return words of every piece as a piggyback; layout: where they are."""
        bits = array_of(words)
        return [
            Words(bits[segment.in_vector], rank) for segment, rank in zip(layout, self._ranks, strict=True)
        ]

    def _masks(self, mask_block: int) -> tuple[Lanes, dict[str, slice], Piggyback]:
        """Return memory for the masks of all pieces, those of one server together; where each one's words
        are; and all of it as a piggyback.
        """
        places: dict[str, slice] = {}
        senders: list[int] = []
        end = 0
        for rank in np.unique(self._ranks):
            start = end
            for piece, of in zip(self._pieces, self._ranks, strict=True):
                if of == rank:
                    size = words_for(piece.length, mask_block)
                    places[piece.title] = slice(end, end + size)
                    end += size
            end += -end % SLOT_LANES
            senders += [int(rank)] * ((end - start) // SLOT_LANES)
        masks = np.zeros(end, np.uint32)
        return (
            masks,
            places,
            [
                Words(masks[first * SLOT_LANES : last * SLOT_LANES], rank)
                for first, last, rank in runs_of(np.array(senders))
            ],
        )

    def _selection(self, mask_block: int, masks: Lanes, places: dict[str, slice]) -> Selection:
        """Return what the masks select of the bucket."""
        encoding = Encoding(mask_block)
        plan = EncodingPlan({segment.name: encoding for segment in self._layout})
        return Selection.of(plan, self._layout, {title: masks[place] for title, place in places.items()})
