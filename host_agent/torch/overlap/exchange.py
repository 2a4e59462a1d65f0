# SPDX-License-Identifier: Apache-2.0
"""Several buckets of a group on their way, of which the front one is summed first.

Every bucket has an operation on the group's queue, which yields: it sums piece after piece until its bucket
is done, but not only its own. Before each piece the ranks agree, in a reduction of two lanes, on how many
buckets all of them have issued, and how many other operations wait on all of them. The others go first; then
the foremost of the buckets that all have issued. So what a rank reduces next depends on nothing but what all
of them know.

No rank waits for another that waits for it: the queue begins operations in the order in which they were
issued, as without pieces. And a rank in the operation of bucket k works only for what every rank has issued
already, or for bucket k itself, whose operation every other rank comes to as it would without pieces.
"""

import threading

import numpy as np
import torch
import torch.distributed as dist

from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.reductions import reduce
from weir.host_agent.torch.backend import WeirProcessGroup
from weir.host_agent.torch.overlap.bucket import Bucket
from weir.host_agent.torch.work import QueuedWork
from weir.wire.definition import Op

_AGREE = Call("weir.torch.LayersFirst: what is next")


class Exchange:
    """The buckets of one group that are on their way. ``issue`` may be called from any thread, in an order
    that is the same on all ranks.
    """

    def __init__(self, group: WeirProcessGroup) -> None:
        self.group = group
        self.overtaken = 0
        """Pieces that were summed before those of a bucket that was issued earlier."""
        self._lock = threading.Lock()
        self._issued = 0
        self._on_their_way: list[Bucket] = []

    @property
    def issued(self) -> int:
        """Return how many buckets were issued so far."""
        return self._issued

    def issue(self, bucket: Bucket) -> QueuedWork:
        """Begin to sum a bucket, whose number is that of those issued before."""
        with self._lock:
            self._issued += 1
            self._on_their_way.append(bucket)
        return self.group.submit(lambda: self._complete(bucket), yields=True)

    def _complete(self, bucket: Bucket) -> None:
        """Work, on the group's thread, until a bucket is summed or has failed."""
        operations, owner = self.group.connection.operations, self.group.connection
        try:
            while not bucket.over:
                others, issued = self._agree()
                if others:
                    for _ in range(others):
                        operations.pass_first(owner)
                else:
                    self._sum_piece(self._foremost(bucket, issued))
        except BaseException as error:
            bucket.fail(error)
        finally:
            with self._lock:
                self._on_their_way.remove(bucket)

    def _agree(self) -> tuple[int, int]:
        """Return how many other operations, and how many buckets, all ranks have issued."""
        owner = self.group.connection
        mine = np.array([owner.operations.passing(owner), self._issued], np.uint32)
        least = ~owner.operate(_AGREE, owner.reduce, ~mine, Op.MAX)
        return int(least[0]), int(least[1])

    def _foremost(self, bucket: Bucket, issued: int) -> Bucket:
        """Return which bucket the next piece is of."""
        with self._lock:
            ours = [one for one in self._on_their_way if one.number < issued and not one.over]
        chosen = min([bucket, *ours], key=lambda one: one.rank)
        self.overtaken += chosen is not bucket
        return chosen

    def _sum_piece(self, bucket: Bucket) -> None:
        """Overwrite a bucket's next piece by its sum; note in the bucket what goes wrong with it alone."""
        start, end = bucket.next_piece()
        piece = bucket.values[start:end]
        call = Call(
            "weir.torch.LayersFirst",
            (bucket.number, start, end, piece.dtype),
            (f"values {start} to {end} of bucket {bucket.number}", piece),
        )
        owner = self.group.connection
        try:
            total = owner.operate(
                call, reduce, owner, piece, dist.ReduceOp.SUM, lambda index: bucket.name(start + index)
            )
        except ArithmeticError as error:  # on all ranks
            bucket.fail(error)
        else:
            if total.data_ptr() != piece.data_ptr():
                piece.copy_(total)
            bucket.summed(start)


def flat_on_host(bucket: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return a copy of gradients in host memory, divided as DDP divides them."""
    return bucket.to("cpu", copy=True).mul_(1.0 / ranks)
