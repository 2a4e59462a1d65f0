# SPDX-License-Identifier: Apache-2.0
"""The process group of the backend "weir": its collectives run through the switch.

The methods are those that torch's front end and DDP call; each queues one operation and returns its handle at
once. Operations of a group run in the order they were issued, those of different groups at the same time.
"""

# Torch's stubs declare overloads and parameter names that neither its front end nor DDP uses on a group.
# mypy: disable-error-code="override, assignment"

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from weir.host_agent.collectives.long_collectives import LongCollectives
from weir.host_agent.collectives.reductions import Operator, RedOpType, check_supported
from weir.host_agent.collectives.tensor_memory import overwrite
from weir.host_agent.torch import coalescing, several_tensors
from weir.host_agent.torch.arguments import Arguments, only
from weir.host_agent.torch.calls import collective, complex_of, message, operator_of, parts_of
from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.device_vector import DeviceCollectives, are_long, are_long_parts
from weir.host_agent.torch.in_backward import in_backward, raised_by_backward
from weir.host_agent.torch.point_to_point import PointToPoint
from weir.host_agent.torch.splitting import SplittableGroup
from weir.host_agent.torch.staging import check_writable, devices_of, on_host, wait_here
from weir.host_agent.torch.work import QueuedWork, submit

BACKEND: Final = "weir"

Together = Callable[[Any, Any], None]


@never_compiled
class WeirProcessGroup(SplittableGroup):
    """A process group on one job of the switch; made by torch, see ``backend``.

    ``connection`` is its membership; ``collectives`` the blocking collectives, for use inside ``submit``.

    Args:
        options: what torch made the group of.
        inherited: the ``pg_options`` of a part of the group that is given none.
        connection: the group's.
        create: joins the job of a part, for such options and ``pg_options``.
    """

    def __init__(
        self,
        options: _DistributedBackendOptions,
        inherited: Any,
        connection: Connection,
        create: Callable[[_DistributedBackendOptions, Any], "WeirProcessGroup"],
    ) -> None:
        super().__init__(options, inherited, create)
        self._timeout = options.timeout
        self._warns = self._global_ranks[options.group_rank] == 0
        self.connection = connection
        self.collectives = LongCollectives(connection)
        self._device = DeviceCollectives(self.collectives)
        self._messages = PointToPoint(options.store, connection)
        self._first_used: list[torch.device] = []  # the CUDA device, once there is one
        self._arguments = Arguments(options.group_rank, options.group_size)
        self._issued = 0

    @property
    def timeout(self) -> timedelta:
        """Return how long a reduction may go without progress."""
        return self._timeout

    def submit(
        self,
        run: Callable[[], Any],
        timeout: timedelta | None = None,
        devices: Sequence[torch.device] = (),
        *,
        yields: bool = False,
    ) -> QueuedWork:
        """Queue a function behind the operations issued before.

        Args:
            run: Runs on the group's thread, and may use ``collectives``.
            timeout: Limit for each reduction in it without progress. None, or a negative one (torch's "not
                set"): the group's.
            devices: CUDA devices that it uses. There it runs on streams of the thread's own, behind the work
                that the caller's current streams have under way. It may return with work enqueued there.
            yields: Other operations of the group may pass it, see ``OperationQueue.passing``.

        Returns:
            The operation's handle.

        Raises:
            RuntimeError: The group is closed.
        """
        limit = timeout if timeout is not None and timeout > timedelta(0) else self._timeout
        self._first_used = self._first_used or list(devices[:1])
        warns = self._warns and not in_backward()

        def guarded() -> Any:
            self.connection.warns = warns
            with self.connection.deadline(limit):
                return self.connection.attempt(run)

        return submit(self.connection.operations, guarded, devices, group=self.connection, yields=yields)

    def submit_sum(
        self,
        run: Callable[[], Any],
        result: Any,
        timeout: timedelta | None = None,
        devices: Sequence[torch.device] = (),
    ) -> QueuedWork:
        """Queue a function as ``submit`` does. In a backward pass, the pass raises its NonFiniteError.

        Args:
            run: Runs on the group's thread.
            result: The value of ``run``, and of the future where the pass raises.
            timeout: As of ``submit``.
            devices: As of ``submit``.

        Returns:
            The operation's handle.

        Raises:
            RuntimeError: The group is closed.
        """
        if self.connection.precision.delivers:
            return self.submit(run, timeout, devices)
        with raised_by_backward(run, result) as queued:
            return self.submit(queued, timeout, devices)

    @contextlib.contextmanager
    def issuing(self) -> Iterator[None]:
        """Issue an operation in the block; if the block raises, tell the other ranks, which would wait.

        A failed operation then takes its place.
        """
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        """Queue a failing operation in the place of one that could not be issued.

        Args:
            error: The error with which it fails on all ranks.
        """
        with contextlib.suppress(RuntimeError):  # the group is closed
            self.submit(partial(_raise, error))

    def _queue(
        self, opts: Any, run: Callable[[Any, Any], None], outputs: Any, inputs: Any, result: Any = None
    ) -> QueuedWork:
        """Queue ``run(outputs, inputs)``, both in host memory, which overwrites ``outputs``.

        Args:
            inputs: tensors that are read. The same object as ``outputs``: the operation works in place.
            result: of the operation; None: the outputs.
        """
        check_writable(outputs)

        written = outputs if result is None else result

        def operation() -> Any:
            on_host(run, outputs, inputs)
            return written

        return self.submit_sum(operation, written, opts.timeout, devices_of(outputs, inputs))

    def _queue_each(
        self,
        opts: Any,
        in_memory: Callable[[Any, Any], None],
        in_chunks: Callable[[Any, Any], None],
        is_long: Callable[[Any, Any], bool],
        outputs: Any,
        inputs: Any,
        result: Any = None,
        together: Together | None = None,
        is_written: bool = True,
    ) -> QueuedWork:
        """Queue a collective of each output and the input beside it, both tensors or lists of them.

        Args:
            opts: torch's.
            in_memory: makes the collective of both in host memory, and overwrites the output.
            in_chunks: makes that of both on a device.
            is_long: tells that they are to go chunk by chunk.
            outputs: are overwritten.
            inputs: are read. The same object as ``outputs``: the collectives work in place.
            result: of the operation; None: the outputs.
            together: makes the collectives of several small tensors, of one dtype, in host memory.
            is_written: whether this rank's outputs are overwritten; if not, they are the inputs, only read.
        """
        if is_written:
            check_writable(outputs)
        pairs = list(zip(outputs, inputs, strict=True))
        written = outputs if result is None else result
        long = [pair for pair in pairs if is_long(*pair)]
        short = [pair for pair in pairs if not is_long(*pair)]
        taken = [output for output, _ in short]
        given = taken if outputs is inputs else [one for _, one in short]

        def run(outputs: Any, inputs: Any) -> None:
            if together is None or len(outputs) == 1:
                for output, one in zip(outputs, inputs, strict=True):
                    in_memory(output, one)
            else:
                coalescing.coalesced(outputs, inputs, in_memory, together)

        def operation() -> Any:
            if is_written:
                on_host(run, taken, given)
            else:
                on_host(lambda _, given: run(given, given), [], given)
            for output, one in long:
                in_chunks(output, one)
            return written

        return self.submit_sum(operation, written, opts.timeout, devices_of(outputs, inputs))

    # Reductions.

    def all_reduce_here(self, tensor: torch.Tensor, op: RedOpType) -> None:
        """Overwrite a tensor by its reduction over all ranks, inside ``submit``.

        Args:
            tensor: Any shape; a dtype that the operator supports.
            op: torch's operator.
        """
        if are_long(tensor):
            self._device.all_reduce(tensor, op)
        else:
            on_host(lambda host, _: self.collectives.all_reduce(host, op), tensor, tensor)

    @collective
    def allreduce(self, tensors: Any, opts: Any) -> QueuedWork:
        """Overwrite tensors by their reduction over all ranks.

        Args:
            tensors: A list of one tensor. Of several, each becomes the reduction of all of them together.
            opts: torch's options: the operator, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        if len(tensors) > 1:
            return self._all_reduce_several(tensors, opts)
        if any(tensor.is_sparse for tensor in tensors):
            summed = list(map(complex_of, tensors))
            return self._all_reduce_sparse(opts, summed, operator_of(opts), summed)
        return self._all_reduce_each(tensors, opts)

    def _all_reduce_several(self, tensors: Any, opts: Any) -> QueuedWork:
        op = operator_of(opts)

        def run(outputs: Any, inputs: Any) -> None:
            whole = several_tensors.combined(inputs, op)
            self.collectives.all_reduce(whole, op)
            several_tensors.overwrite_all(outputs, whole)

        def run_sparse() -> Any:
            whole = several_tensors.combined([one.coalesce().cpu() for one in tensors], dist.ReduceOp.SUM)
            self.collectives.all_reduce_sparse(whole, op)
            several_tensors.overwrite_all(tensors, whole)
            return tensors

        if tensors[0].is_sparse:
            return self.submit_sum(run_sparse, tensors, opts.timeout, devices_of(tensors, sparse=True))
        return self._queue(opts, run, tensors, tensors)

    @collective
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> QueuedWork:
        """Do several ``allreduce``.

        Args:
            tensors: Tensors of any shapes. A tensor that is listed twice is reduced once.
            opts: torch's options: the operator, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        op, each = operator_of(opts), coalescing.distinct(tensors)
        if any(tensor.is_sparse for tensor in each):
            return self._all_reduce_sparse(opts, list(map(complex_of, each)), op, tensors)
        return self._all_reduce_each(
            each,
            opts,
            lambda tensors, _: coalescing.all_reduce(self.collectives, tensors, op),
            tensors,
        )

    def _all_reduce_each(
        self, tensors: Any, opts: Any, together: Together | None = None, result: Any = None
    ) -> QueuedWork:
        op = operator_of(opts)
        work = self._queue_each(
            opts,
            lambda tensor, _: self.collectives.all_reduce(tensor, op),
            lambda tensor, _: self._device.all_reduce(tensor, op),
            lambda tensor, _: are_long(tensor),
            tensors,
            tensors,
            result,
            together,
        )
        return _readable(work, tensors if result is None else result)

    def _all_reduce_sparse(
        self, opts: Any, tensors: list[torch.Tensor], op: Operator, result: Sequence[torch.Tensor]
    ) -> QueuedWork:
        """Do an ``allreduce`` of tensors of which some are sparse.

        Those on a device are coalesced and copied while the queue's thread waits for their streams: how many
        rows there are is known there only.
        """
        check_writable(tensors)

        def operation() -> Sequence[torch.Tensor]:
            for tensor in tensors:
                if not tensor.is_sparse:
                    on_host(lambda one, _: self.collectives.all_reduce(one, op), tensor, tensor)
                elif not tensor.is_cuda:
                    self.collectives.all_reduce_sparse(tensor, op)
                else:
                    copy = tensor.coalesce().cpu()
                    self.collectives.all_reduce_sparse(copy, op)
                    overwrite(tensor, copy.to(tensor.device))
            return result

        work = self.submit_sum(operation, result, opts.timeout, devices_of(tensors, sparse=True))
        return _readable(work, result)

    @collective
    def reduce(self, tensors: Any, opts: Any) -> QueuedWork:
        """Overwrite the root's tensor by the reduction.

        Args:
            tensors: A list of one tensor, with the same shape and dtype on all ranks.
            opts: torch's options: operator, root, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        op, root = operator_of(opts), opts.rootRank
        return self._queue_each(
            opts,
            lambda tensor, _: self.collectives.reduce(tensor, root, op),
            lambda tensor, _: self._device.reduce(tensor, root, op),
            lambda tensor, _: are_long(tensor),
            tensors,
            tensors,
            is_written=self.rank() == root,
        )

    @collective
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite each output by this rank's part of the reduction of the input list beside it.

        Args:
            outputs: Tensors.
            inputs: For each output a list of tensors, one per rank.
            opts: torch's options: the operator, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        op = operator_of(opts)
        return self._queue_each(
            opts,
            lambda output, parts: self.collectives.reduce_scatter(output, parts, op),
            lambda output, parts: self._device.reduce_scatter(output, parts, op),
            lambda output, parts: are_long(output, *parts),
            outputs,
            inputs,
        )

    @collective
    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> QueuedWork:
        """Do a ``reduce_scatter`` of one tensor that holds all parts.

        Args:
            output: This rank's part.
            whole: All parts, in order of ranks: as many values as all outputs.
            opts: torch's options: the operator, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._reduce_scatter_wholes([output], [whole], opts)

    _reduce_scatter_base = reduce_scatter_single

    @collective
    def reduce_scatter_single_coalesced(self, outputs: Any, wholes: Any, opts: Any) -> QueuedWork:
        """Do several ``reduce_scatter_single``.

        Args:
            outputs: This rank's parts.
            wholes: For each output a tensor with all parts.
            opts: torch's options: the operator, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._reduce_scatter_wholes(outputs, wholes, opts)

    def _reduce_scatter_wholes(self, outputs: Any, wholes: Any, opts: Any) -> QueuedWork:
        op = operator_of(opts)
        for output, whole in zip(outputs, wholes, strict=True):
            if not output._is_view() and (numbers := parts_of(whole)) is not None:
                check_supported(op, numbers)
        return self._queue_each(
            opts,
            lambda output, whole: self.collectives.reduce_scatter_single(output, whole, op),
            lambda output, whole: self._device.reduce_scatter_single(output, whole, op),
            lambda output, whole: are_long_parts(output, whole, self.size()),
            outputs,
            wholes,
            together=lambda outputs, wholes: coalescing.reduce_scatter_single(
                self.collectives, outputs, wholes, op
            ),
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Data movement.

    @collective
    def broadcast(self, tensors: Any, opts: Any) -> QueuedWork:
        """Overwrite tensors by the root's.

        Args:
            tensors: A list of one tensor. Several are overwritten by the root tensor among the root's.
            opts: torch's options: root rank, root tensor, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        root = opts.rootRank
        if len(tensors) > 1:
            return self._broadcast_several(tensors, opts)
        return self._queue_each(
            opts,
            lambda tensor, _: self.collectives.broadcast(tensor, root),
            lambda tensor, _: self._device.broadcast(tensor, root),
            lambda tensor, _: are_long(tensor),
            tensors,
            tensors,
            is_written=self.rank() != root,
        )

    def _broadcast_several(self, tensors: Any, opts: Any) -> QueuedWork:
        def run(outputs: Any, inputs: Any) -> None:
            chosen = inputs[opts.rootTensor]
            self.collectives.broadcast(chosen, opts.rootRank)
            several_tensors.overwrite_all(outputs, chosen)

        return self._queue(opts, run, tensors, tensors)

    @collective
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite each output list by the inputs of all ranks.

        Args:
            outputs: For each input a list of tensors, one per rank.
            inputs: Tensors.
            opts: torch's options: the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._all_gather_lists(opts, *several_tensors.gathers(outputs, inputs), _flat_if_one(outputs))

    @collective
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Do an ``allgather`` with the lists transposed.

        Args:
            outputs: A list per rank: ``outputs[r][i]`` gets rank r's ``inputs[i]``.
            inputs: Tensors.
            opts: torch's options: the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._all_gather_lists(opts, list(zip(*outputs, strict=True)), inputs, outputs)

    def _all_gather_lists(self, opts: Any, outputs: Any, inputs: Any, result: Any) -> QueuedWork:
        return self._queue_each(
            opts,
            self.collectives.all_gather,
            self._device.all_gather,
            lambda parts, own: are_long(own, *parts),
            outputs,
            inputs,
            result,
        )

    @collective
    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any) -> QueuedWork:
        """Do an ``allgather`` into one tensor that holds all parts.

        Args:
            output: All parts, in order of ranks.
            own: This rank's part.
            opts: torch's options: the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._all_gather_wholes([output], [own], opts)

    _allgather_base = all_gather_single

    @collective
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Do several ``all_gather_single``.

        Args:
            outputs: For each input a tensor that holds all parts.
            inputs: This rank's parts.
            opts: torch's options: the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._all_gather_wholes(outputs, inputs, opts)

    def _all_gather_wholes(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        return self._queue_each(
            opts,
            self.collectives.all_gather_single,
            self._device.all_gather_single,
            lambda output, own: are_long_parts(own, output, self.size()),
            outputs,
            inputs,
            together=lambda outputs, inputs: coalescing.all_gather_single(self.collectives, outputs, inputs),
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite the root's output list by the inputs of all ranks.

        Args:
            outputs: At the root a list of one list of tensors, one per rank; elsewhere an empty list.
            inputs: A list of one tensor.
            opts: torch's options: the root, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        root = opts.rootRank

        def run(outputs: Any, inputs: Any) -> None:
            for index, own in enumerate(inputs):
                self.collectives.gather(outputs[index] if outputs else [], own, root)

        return self._queue(opts, run, outputs, inputs, _flat_if_one(outputs))

    @collective
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite each rank's output by its part of the root's input list.

        Args:
            outputs: A list of one tensor.
            inputs: At the root a list of one list of tensors, one per rank; elsewhere an empty list.
            opts: torch's options: the root, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        root = opts.rootRank

        def run(outputs: Any, inputs: Any) -> None:
            for index, output in enumerate(outputs):
                self.collectives.scatter(output, inputs[index] if inputs else [], root)

        return self._queue(opts, run, outputs, inputs)

    @collective
    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite each output by a rank's input for this rank.

        Args:
            outputs: A tensor per rank: ``outputs[r]`` gets rank r's.
            inputs: A tensor per rank: ``inputs[r]`` goes to rank r.
            opts: torch's options: the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._queue(opts, self.collectives.all_to_all, outputs, inputs)

    @collective
    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any,
    ) -> QueuedWork:
        """Do an ``alltoall`` along dimension 0 of one tensor.

        Args:
            output: Parts from all ranks, in order.
            whole: Parts for all ranks, in order.
            output_split_sizes: Rows from each rank; empty: equal parts.
            input_split_sizes: Rows for each rank; empty: equal parts.
            opts: torch's options: the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """

        def run(outputs: Any, wholes: Any) -> None:
            self.collectives.all_to_all_single(outputs[0], wholes[0], output_split_sizes, input_split_sizes)

        return self._queue(opts, run, [output], [whole])

    alltoall_base = all_to_all_single

    @collective
    def barrier(self, opts: Any) -> QueuedWork:
        """Wait until every rank has called it.

        The work that each caller's current stream had under way on its CUDA device is done, too. The device
        is that of ``dist.barrier(device_ids=...)``, or the one that the group is bound to, or that it was
        first used with.

        Args:
            opts: torch's options: device ids, and the timeout.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        devices = self._barrier_devices(opts)

        def operation() -> list[torch.Tensor]:
            wait_here(devices)
            self.collectives.barrier()
            return []

        return self.submit(operation, opts.timeout, devices)

    def _barrier_devices(self, opts: Any) -> list[torch.device]:
        """Return the CUDA device that a barrier is of, with its index, if there is one."""
        device = getattr(opts, "device", None)
        if device is None or device.type != "cuda":
            return self._first_used
        return [device if device.index is not None else torch.device("cuda", torch.cuda.current_device())]

    # Messages between two ranks.

    @message
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> QueuedWork:  # noqa: N803
        """Send a tensor to a rank that receives it, host to host.

        Args:
            tensors: A list of one tensor.
            dstRank: Receiver's rank in the group.
            tag: Must equal the receiver's.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._messages.send(only("send", tensors), dstRank, tag, self._timeout)

    @message
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> QueuedWork:  # noqa: N803
        """Overwrite a tensor by one that a rank sends.

        Args:
            tensors: A list of one tensor, with shape and dtype of the sender's.
            srcRank: Sender's rank in the group.
            tag: Must equal the sender's.

        Returns:
            The operation's handle. Its ``wait`` raises the errors of the reduction.
        """
        return self._messages.receive(only("recv", tensors), srcRank, tag, self._timeout)

    @message
    def recv_anysource(self, tensors: Any, tag: int = 0) -> QueuedWork:
        """Overwrite a tensor by one that any rank sends.

        Args:
            tensors: A list of one tensor, with shape and dtype of the sender's.
            tag: Must equal the sender's.

        Returns:
            The operation's handle, which knows the sender after ``wait``.
        """
        return self._messages.receive(only("recv_anysource", tensors), None, tag, self._timeout)

    # The group itself.

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name it is registered under."""
        return BACKEND

    def getRank(self) -> int:  # noqa: N802
        """Return this process's rank in the group."""
        return self.rank()

    def getSize(self) -> int:  # noqa: N802
        """Return how many ranks the group has."""
        return self.size()

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_name(self) -> str:
        """Return torch's name for the group."""
        return self._group_name

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    @property
    def group_desc(self) -> str:
        """Return torch's description of the group."""
        return self._group_desc

    def set_timeout(self, timeout: timedelta) -> None:
        """Bound every reduction that begins from now on.

        Args:
            timeout: Limit without progress.
        """
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives this rank has issued, the same on all ranks that are in step."""
        return self._issued

    def abort(self) -> None:
        """End the operation that is running, and the group; never blocks on other ranks.

        What it holds goes with the last reference to it, should nobody call ``shutdown``: torch does not.
        """
        self.connection.abort("this rank aborted the process group")
        weakref.finalize(self, _close_in_background, self.connection).atexit = False

    def shutdown(self) -> None:
        """Leave the job; what is still running is aborted. Called by destroy_process_group."""
        self.connection.close()


def _readable(work: QueuedWork, tensors: Sequence[torch.Tensor]) -> QueuedWork:
    """Return the work of an ``allreduce``, whose future C++ can read where the tensors are float16, as DDP's
    FP16_COMPRESS sends them.
    """
    if tensors[0].dtype is torch.float16:
        work.read_by_cpp = tensors
    return work


def _flat_if_one(lists: Any) -> Any:
    """Return lists of tensors as other backends return them: the one list alone where there is one."""
    return lists[0] if len(lists) == 1 else lists


def _raise(error: Exception) -> NoReturn:
    raise error


def _close_in_background(connection: Connection) -> None:
    """Close a connection on a thread of its own: that may wait for operations, and for other ranks."""
    threading.Thread(target=connection.close, name="weir-close").start()
