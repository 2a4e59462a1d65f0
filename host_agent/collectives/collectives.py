# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed for one group, each built on the one operation on lanes.

Calls block until done and must come in the same order, with matching shapes and dtypes, on every rank.
Tensors may have any strides and any length, zero included; results are written into the caller's.
``docs/internals/collectives.md`` says how each is built and what it costs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, Final, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from weir.host_agent.collectives import data_movement, sparse_sum
from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import as_stored, describe
from weir.host_agent.collectives.operation import Call
from weir.host_agent.collectives.packing import Precision
from weir.host_agent.collectives.reductions import Operator, reduce_tensor, reduce_tensors
from weir.host_agent.collectives.tensor_memory import overwrite

Tensors = Sequence[torch.Tensor]
P = ParamSpec("P")
C = TypeVar("C", bound="Collectives")


def operation(
    describe: Callable[P, Call],
) -> Callable[[Callable[Concatenate[C, P], None]], Callable[Concatenate[C, P], None]]:
    """Return a decorator that makes a method an operation of the group, as its arguments describe it."""

    def decorate(method: Callable[Concatenate[C, P], None]) -> Callable[Concatenate[C, P], None]:
        @functools.wraps(method)
        def run(self: C, /, *args: P.args, **kwargs: P.kwargs) -> None:
            call = self._as_made(describe(*args, **kwargs))
            self.communicator.run_call(call, method, self, *args, **kwargs)

        return run

    return decorate


_SUM: Final = dist.ReduceOp.SUM
_USUAL: Final = Precision()


def _root(root: int) -> str:
    return f"root {root}"


def _sizes(tensors: Tensors) -> tuple[int, ...]:
    return tuple(tensor.numel() for tensor in tensors)


class Collectives:
    """The collectives of one group.

    Example::

        collectives = Collectives(communicator)
        collectives.all_reduce(gradient, dist.ReduceOp.SUM)
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._count = 0

    @operation(
        lambda tensor, op=_SUM: Call("all_reduce", (tensor.dtype, tensor.numel(), op.value), (tensor, op))
    )
    def all_reduce(self, tensor: torch.Tensor, op: Operator = dist.ReduceOp.SUM) -> None:
        """Overwrite ``tensor`` by its reduction over all ranks."""
        _assign(tensor, self._reduced("all_reduce", tensor, op))

    @operation(lambda tensor, op=_SUM: sparse_sum.call_of(tensor, op))
    def all_reduce_sparse(self, tensor: torch.Tensor, op: Operator = dist.ReduceOp.SUM) -> None:
        """Overwrite a sparse tensor (COO) by its coalesced sum over all ranks."""
        title = self._title("all_reduce")

        def name(row: int, value: int) -> str:
            return f"{title}, value {value} of row {row} of a sparse {describe(tensor)}"

        overwrite(tensor, sparse_sum.all_reduce(self.communicator, tensor, op, name))

    @operation(
        lambda tensor, root, op=_SUM: Call(
            "reduce", (tensor.dtype, tensor.numel(), root, op.value), (tensor, _root(root), op)
        )
    )
    def reduce(self, tensor: torch.Tensor, root: int, op: Operator = dist.ReduceOp.SUM) -> None:
        """Overwrite the root's ``tensor`` by the reduction; leave the others' as they are."""
        total = self._reduced_parts("reduce", [tensor], [root], op)
        if self.communicator.rank == root:
            _assign(tensor, total)

    @operation(
        lambda output, inputs, op=_SUM: Call(
            "reduce_scatter", (output.dtype, _sizes(inputs), op.value), (output, inputs, op)
        )
    )
    def reduce_scatter(self, output: torch.Tensor, inputs: Tensors, op: Operator = dist.ReduceOp.SUM) -> None:
        """Overwrite ``output`` by the reduction of all ranks' ``inputs[this rank]``; sizes may differ."""
        self._expect("reduce_scatter", output, inputs[self.communicator.rank])
        _assign(output, self._reduced_parts("reduce_scatter", inputs, range(self.communicator.size), op))

    @operation(
        lambda output, whole, op=_SUM: Call(
            "reduce_scatter_tensor", (whole.dtype, whole.numel(), op.value), (output, whole, op)
        )
    )
    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, op: Operator = dist.ReduceOp.SUM
    ) -> None:
        """Do ``reduce_scatter`` with the inputs laid one after another in ``whole``."""
        self.reduce_scatter(output, self._parts("reduce_scatter_single", whole, output), op)

    @operation(
        lambda tensor, root: Call("broadcast", (tensor.dtype, tensor.numel(), root), (tensor, _root(root)))
    )
    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite ``tensor`` by the root's."""
        data_movement.broadcast(self.communicator, tensor, root)

    @operation(lambda outputs, own: Call("all_gather", (own.dtype, _sizes(outputs)), (outputs, own)))
    def all_gather(self, outputs: Tensors, own: torch.Tensor) -> None:
        """Overwrite ``outputs[r]`` by rank r's ``own``; sizes may differ."""
        self._expect("all_gather", outputs[self.communicator.rank], own)
        data_movement.all_gather(self.communicator, outputs, own)

    @operation(
        lambda output, own: Call("all_gather_into_tensor", (output.dtype, output.numel()), (output, own))
    )
    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor) -> None:
        """Do ``all_gather`` with the outputs laid one after another in ``output``."""
        flat = torch.empty(output.numel(), dtype=output.dtype)
        data_movement.all_gather(self.communicator, self._parts("all_gather_single", flat, own), own)
        _assign(output, flat)

    @operation(lambda outputs, own, root: Call("gather", (own.dtype, own.numel(), root), (own, _root(root))))
    def gather(self, outputs: Tensors, own: torch.Tensor, root: int) -> None:
        """Overwrite the root's ``outputs[r]`` by rank r's ``own``, all of one size; others pass none."""
        for output in outputs:
            self._expect("gather", output, own)
        data_movement.gather(self.communicator, outputs, own, root)

    @operation(
        lambda output, inputs, root: Call(
            "scatter", (output.dtype, output.numel(), root), (output, _root(root))
        )
    )
    def scatter(self, output: torch.Tensor, inputs: Tensors, root: int) -> None:
        """Overwrite ``output`` by the root's ``inputs[this rank]``, all of one size; others pass none."""
        for part in inputs:
            self._expect("scatter", output, part)
        data_movement.scatter(self.communicator, output, inputs, root)

    @operation(
        lambda outputs, inputs: Call("all_to_all", tuple(one.dtype for one in inputs[:1]), (outputs, inputs))
    )
    def all_to_all(self, outputs: Tensors, inputs: Tensors) -> None:
        """Overwrite ``outputs[r]`` by rank r's ``inputs[this rank]``; sizes may differ."""
        data_movement.all_to_all(self.communicator, outputs, inputs)

    @operation(
        lambda output, whole, output_splits=(), input_splits=(): Call(
            "all_to_all_single", (whole.dtype,), (output, whole)
        )
    )
    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
    ) -> None:
        """Do ``all_to_all`` along dimension 0; splits are row counts per rank, equal ones when empty."""
        gathered = torch.empty(output.shape, dtype=output.dtype)
        outputs = self._rows("output", gathered, output_splits)
        self.all_to_all(outputs, self._rows("input", whole, input_splits))
        _assign(output, gathered)

    @operation(lambda: Call("barrier"))
    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.communicator.barrier()

    def _reduced(self, what: str, tensor: torch.Tensor, op: Operator) -> torch.Tensor:
        """Return the flat reduction of ``tensor``, in its memory or in new."""
        title = self._title(what)
        return reduce_tensor(
            self.communicator,
            as_stored(tensor).reshape(-1),
            op,
            lambda index: f"{title}, element {index} of a {describe(tensor)}",
        )

    def _reduced_parts(
        self, what: str, tensors: Tensors, owners: Sequence[int], op: Operator
    ) -> torch.Tensor:
        """Return the flat reduction of the tensor that this rank owns; of no elements when it owns none."""
        for tensor in tensors[1:]:
            if tensor.dtype != tensors[0].dtype:
                raise ValueError(f"{what}: a {describe(tensor)} stands beside a {describe(tensors[0])}")
        name = self._part_namer(what, tensors, owners)
        return reduce_tensors(self.communicator, tensors, owners, op, name)

    def _part_namer(self, what: str, tensors: Tensors, owners: Sequence[int]) -> Callable[[int, int], str]:
        """Return what describes an element of a further reduction by its tensor's number and its own."""
        title = self._title(what)

        def name(part: int, element: int) -> str:
            whose = f"the part of rank {owners[part]}" if len(tensors) > 1 else "it"
            return f"{title}, element {element} of {whose}, a {describe(tensors[part])}"

        return name

    def _as_made(self, call: Call) -> Call:
        """Return a call with the options that the group was made with, where they are not the usual ones."""
        precision = self.communicator.precision
        if precision == _USUAL:
            return call
        return call._replace(facts=(*call.facts, precision), arguments=(*call.arguments, str(precision)))

    def _title(self, what: str) -> str:
        """Return the name of a further reduction, for errors."""
        self._count += 1
        return f"{what} number {self._count} of this group"

    def _parts(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
        """Return ``whole``, flattened, cut into one part per rank."""
        if whole.dtype != part.dtype or whole.numel() != part.numel() * self.communicator.size:
            raise ValueError(
                f"{what}: a {describe(whole)} is not {self.communicator.size} times "
                f"a {describe(part)}, one per rank"
            )
        return (
            list(torch.split(whole.reshape(-1), part.numel()))
            if part.numel()
            else [part] * self.communicator.size
        )

    def _rows(self, what: str, whole: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
        """Return ``whole`` cut along dimension 0 into one part per rank."""
        size = self.communicator.size
        rows = whole.shape[0] if whole.dim() else 0
        if not splits:
            if rows % size:
                raise ValueError(f"all_to_all_single: {rows} rows of {what} do not divide among {size} ranks")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: {what} splits {list(splits)} are not {size} numbers that sum to {rows}"
            )
        return list(torch.split(whole, list(splits)))

    def _expect(self, what: str, left: torch.Tensor, right: torch.Tensor) -> None:
        if left.dtype != right.dtype or left.numel() != right.numel():
            raise ValueError(
                f"{what}: rank {self.communicator.rank} has a {describe(left)} "
                f"for what is a {describe(right)}"
            )


def _assign(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Overwrite a tensor of any strides by a flat one's values, which may be in its own memory already."""
    if tensor.data_ptr() != flat.data_ptr():
        overwrite(tensor, flat.view(tensor.shape))
