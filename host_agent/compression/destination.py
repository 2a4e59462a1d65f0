# SPDX-License-Identifier: Apache-2.0
"""Destinations of sums: all workers, or servers that are each given some parameters' sums."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Audience
from weir.host_agent.collectives.contribution import packet_block_of
from weir.host_agent.collectives.packing import LaneFormat
from weir.host_agent.collectives.quantize import Rows
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings.encoding import SCALE_BLOCK
from weir.host_agent.compression.encodings.selection import Selection


@dataclass(frozen=True)
class Destination:
    """A destination of sums. This one: all members of a group contribute, and are given all sums.

    Attributes:
        reaches_all: every member is given every sum.
        takes_notes: lossless values take the workers' notes along.
        takes_losses: values may go missing.
    """

    reaches_all: ClassVar[bool] = True
    takes_notes: ClassVar[bool] = True
    takes_losses: ClassVar[bool] = True

    def workers(self, members: int) -> int:
        """Return how many of this many members contribute: the first ones."""
        return members

    def watched(self) -> "Destination":
        """Return the destination of sums at which every worker looks."""
        return self

    def packet_block(self, form: LaneFormat, selection: Selection, *, lossless: bool) -> int | None:
        """Return the lanes in a block of the packets; None: as many as fit, as no block stands by itself."""
        if form.fields > 1 and selection.everything and lossless:
            return None
        return packet_block_of(form, selection.plan.packet_block)

    def audience(
        self, layout: BucketLayout, form: LaneFormat, rows: Rows | None, packet_block: int
    ) -> Audience | None:
        """Return who is given each block of the packets; None: all are given all.

        Args:
            layout: of the packed vector.
            form: of its values in lanes.
            rows: numbers of the scale blocks that have lanes; None: all have.
            packet_block: lanes in a block of the packets.
        """
        return None

    def gives(self, rank: int) -> bool:
        """Return whether a member receives any sums."""
        return True

    def given(self, layout: BucketLayout, packed: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the sums that a member was given, zeros elsewhere. packed: may be overwritten."""
        return packed


@dataclass(frozen=True)
class AllMembers(Destination):
    """The last members of a group are servers, which do not contribute. All members are given all sums.

    servers: how many these are.
    """

    takes_notes: ClassVar[bool] = False
    takes_losses: ClassVar[bool] = False

    servers: int

    def workers(self, members: int) -> int:
        """Return how many members are no servers."""
        return members - self.servers

    def packet_block(self, form: LaneFormat, selection: Selection, *, lossless: bool) -> int | None:
        """Return the lanes in a block of the packets: each is of one parameter, and so of one server."""
        return packet_block_of(form, SCALE_BLOCK if selection.everything else selection.plan.packet_block)


@dataclass(frozen=True)
class Servers(AllMembers):
    """Each server is given the sums of some parameters, and nobody else is.

    rank_of: the member that is given a parameter's sum, by the parameter's name.
    """

    reaches_all: ClassVar[bool] = False

    rank_of: Mapping[str, int]

    def watched(self) -> Destination:
        """Return the destination of sums that the workers are to see, too."""
        return AllMembers(self.servers)

    def audience(
        self, layout: BucketLayout, form: LaneFormat, rows: Rows | None, packet_block: int
    ) -> Audience:
        """Return which server is given each block of the packets; for the arguments see ``Destination``."""
        blocks = layout.in_blocks(SCALE_BLOCK)
        ranks = np.array([self.rank_of[segment.name] for segment in blocks], np.int16)
        of_scales = ranks[blocks.owners]
        if rows is not None:
            of_scales = of_scales[rows]
        return np.repeat(of_scales, form.lanes(SCALE_BLOCK) // packet_block)

    def gives(self, rank: int) -> bool:
        """Return whether a member is a server of some parameter."""
        return rank in self.rank_of.values()

    def given(self, layout: BucketLayout, packed: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the sums of a server's own parameters."""
        for segment in layout:
            if self.rank_of[segment.name] != rank:
                packed[segment.in_vector] = 0
        return packed


ALL_WORKERS: Final = Destination()
