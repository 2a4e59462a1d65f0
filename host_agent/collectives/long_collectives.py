# SPDX-License-Identifier: Apache-2.0
"""Collectives of long vectors that are elsewhere, on a device: they go chunk by chunk, see ``chunks``.

Their results have the bits of those in ``collectives``. All ranks must have theirs elsewhere: on a rank that
has it in host memory the same collective is another operation, and every rank is told so.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from weir.host_agent.collectives import data_movement
from weir.host_agent.collectives.chunks import Remote, chunks_of, move_in_chunks, reduce_in_chunks
from weir.host_agent.collectives.collectives import Collectives, operation
from weir.host_agent.collectives.dtypes import describe
from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.reductions import Operator, reduce_tensor, reduce_tensors

_SUM = dist.ReduceOp.SUM


def _call(name: str, vector: Remote, op: Operator | None = None, root: int | None = None) -> Call:
    """Return what all ranks must agree on, of a vector that is the same on all of them."""
    chunks = f"on a device, in {len(chunks_of(vector.count))} chunks"
    words = [f"root {root}"] * (root is not None) + ([op] if op is not None else [])
    facts = (vector.tensor.dtype, vector.tensor.numel(), root, op.value if op is not None else None, chunks)
    return Call(name, facts, (vector.tensor, *words, chunks))


class LongCollectives(Collectives):
    """The collectives of one group, among them those of vectors that are elsewhere.

    Vectors of one call have one dtype and one length.
    """

    @operation(lambda vector, op=_SUM: _call("all_reduce", vector, op))
    def all_reduce_in_chunks(self, vector: Remote, op: Operator = _SUM) -> None:
        """Overwrite ``vector`` by its reduction over all ranks."""
        title = self._title("all_reduce")

        def name(index: int) -> str:
            return f"{title}, element {index} of a {describe(vector.tensor)}"

        def combine(chunk: list[torch.Tensor], start: int) -> torch.Tensor:
            return reduce_tensor(self.communicator, chunk[0], op, lambda index: name(start + index))

        reduce_in_chunks(self.communicator, [vector], vector, op, combine, name)

    @operation(lambda vector, root, op=_SUM: _call("reduce", vector, op, root))
    def reduce_in_chunks(self, vector: Remote, root: int, op: Operator = _SUM) -> None:
        """Overwrite the root's ``vector`` by the reduction; leave the others' as they are."""
        self._reduce_parts_in_chunks("reduce", vector, [vector], [root], op)

    @operation(lambda output, inputs, op=_SUM: _call("reduce_scatter", output, op))
    def reduce_scatter_in_chunks(self, output: Remote, inputs: Sequence[Remote], op: Operator = _SUM) -> None:
        """Overwrite ``output`` by the reduction of all ranks' ``inputs[this rank]``."""
        self._reduce_parts_in_chunks("reduce_scatter", output, inputs, range(self.communicator.size), op)

    @operation(lambda vector, root: _call("broadcast", vector, root=root))
    def broadcast_in_chunks(self, vector: Remote, root: int) -> None:
        """Overwrite ``vector`` by the root's."""
        given, taken = ([vector], []) if self.communicator.rank == root else ([], [vector])

        def move(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
            data_movement.broadcast(self.communicator, (inputs or outputs)[0], root)

        move_in_chunks(given, taken, move)

    @operation(lambda outputs, own: _call("all_gather", own))
    def all_gather_in_chunks(self, outputs: Sequence[Remote], own: Remote) -> None:
        """Overwrite ``outputs[r]`` by rank r's ``own``."""

        def move(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
            data_movement.all_gather(self.communicator, outputs, inputs[0])

        move_in_chunks([own], outputs, move)

    def _reduce_parts_in_chunks(
        self, what: str, output: Remote, inputs: Sequence[Remote], owners: Sequence[int], op: Operator
    ) -> None:
        """Overwrite ``output`` by the reduction of the input that this rank owns, if it owns one."""
        name = self._part_namer(what, [vector.tensor for vector in inputs], owners)

        def combine(chunks: list[torch.Tensor], start: int) -> torch.Tensor:
            def name_here(part: int, element: int) -> str:
                return name(part, start + element)

            return reduce_tensors(self.communicator, chunks, owners, op, name_here)

        reduce_in_chunks(
            self.communicator,
            inputs,
            output if self.communicator.rank in owners else None,
            op,
            combine,
            lambda index: name(*divmod(index, output.count)),
        )
