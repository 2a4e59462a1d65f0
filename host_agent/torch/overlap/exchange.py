# SPDX-License-Identifier: Apache-2.0
"""Several buckets of a group on their way, of which the front one is summed first.

Every bucket has an operation on the group's queue, which yields: it sums piece after piece until its bucket
is done, but not only its own. With each piece the ranks tell one another how many buckets they have issued,
and how many other operations wait. The others that wait on all ranks go next; then the foremost of the
buckets that all have issued. So what a rank reduces next depends on nothing but what all of them know.

No rank waits for another that waits for it: the queue begins operations in the order in which they were
issued, as without pieces. And a rank in the operation of bucket k works only for what every rank has issued
already, or for bucket k itself, whose operation every other rank comes to as it would without pieces.
"""

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch.distributed as dist

from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.reductions import reduce_tensor
from weir.host_agent.torch.overlap.bucket import Bucket
from weir.host_agent.torch.overlap.pieces import Pieces, divisible
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.host_agent.torch.work import QueuedWork

_MOST: Final = 16  # of either kind that is told with a piece


class Exchange:
    """The buckets of one group that are on their way. ``issue`` may be called from any thread, in an order
    that is the same on all ranks.

    Args:
        group: the process group.
        piece: lanes that are summed at a time.

    Attributes:
        beside: the exchanges of the same buckets' steps, this one among them.
        overtaken: pieces that were summed while a bucket of any of these was on its way that was issued
            earlier.
    """

    def __init__(self, group: WeirProcessGroup, piece: int) -> None:
        self.group = group
        self.beside: Sequence[Exchange] = (self,)
        self.overtaken = 0
        self._piece = piece
        self._lock = threading.Lock()
        self._issued = 0
        self._on_their_way: dict[Bucket, Pieces | None] = {}
        self._known = 0  # buckets that all ranks have issued
        self._others = 0  # operations that wait on all ranks, and may pass

    @property
    def issued(self) -> int:
        """Return how many buckets were issued so far."""
        return self._issued

    def issue(self, bucket: Bucket) -> QueuedWork:
        """Begin to sum a bucket, whose number is that of those issued before."""
        with self._lock:
            self._issued += 1
            self._on_their_way[bucket] = None
        return self.group.submit(lambda: self._complete(bucket), yields=True)

    def _complete(self, bucket: Bucket) -> None:
        """Work, on the group's thread, until a bucket is summed or has failed."""
        operations, owner = self.group.connection.operations, self.group.connection
        self._others = 0  # those of the last piece have run since
        try:
            while not bucket.over:
                for _ in range(self._others):
                    operations.pass_first(owner)
                self._others = 0
                self._sum_piece(self._foremost(bucket))
        except BaseException as error:
            bucket.fail(error)
        finally:
            with self._lock:
                del self._on_their_way[bucket]

    def _foremost(self, bucket: Bucket) -> Bucket:
        """Return which bucket the next piece is of."""
        with self._lock:
            ours = [one for one in self._on_their_way if one.number < self._known and not one.over]
        return min([bucket, *ours], key=lambda one: one.rank)

    def _sum_piece(self, bucket: Bucket) -> None:
        """Sum a bucket's next piece; note in the bucket what goes wrong with it on all ranks."""
        pieces, values = self._on_their_way[bucket], bucket.values
        left = pieces.left if pieces is not None else None
        call = Call(
            "weir.torch.LayersFirst",
            (bucket.number, values.dtype, values.numel(), left, self._piece),
            (f"bucket {bucket.number}", values, f"{left or 'all'} blocks left"),
        )
        try:
            self.group.connection.run_call(call, self._sum, bucket, pieces)
        except ArithmeticError as error:
            bucket.fail(error)
        under_way = [one for exchange in self.beside for one in list(exchange._on_their_way)]
        self.overtaken += any(one.rank > bucket.rank and not one.over for one in under_way)

    def _sum(self, bucket: Bucket, pieces: Pieces | None) -> None:
        owner = self.group.connection
        if not divisible(owner, bucket.values):
            bucket.values.copy_(reduce_tensor(owner, bucket.values, dist.ReduceOp.SUM, bucket.name))
            bucket.summed(0)
            return
        if pieces is None:
            pieces = self._on_their_way[bucket] = Pieces(owner, bucket, self._piece)
        if pieces.left:
            notes = np.zeros((2, _MOST), np.int32)  # as many ones as there are of either kind
            notes[0, : self._issued - self._known] = 1
            notes[1, : owner.operations.passing(owner)] = 1
            pieces.add_last(notes.reshape(-1))
            known, others = (notes == self.group.size()).sum(axis=1)
            self._known, self._others = self._known + int(known), int(others)
