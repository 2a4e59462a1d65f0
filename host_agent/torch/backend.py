# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend "weir": a process group whose collectives run through the switch.

Importing ``weir.torch`` registers it. The methods are those that torch's front end and DDP call; each queues
one operation and returns its handle at once. Operations of a process run in the order they were issued.
"""

# Torch's stubs declare overloads and parameter names that neither its front end nor DDP uses on a group.
# mypy: disable-error-code="override, assignment"

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, NoReturn, ParamSpec

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from weir.host_agent.collectives.long_collectives import LongCollectives
from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits, Precision
from weir.host_agent.collectives.reductions import RedOpType, check_supported
from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.device_vector import DeviceCollectives, are_long, are_long_parts
from weir.host_agent.torch.joining import LocalStep, open_connection
from weir.host_agent.torch.point_to_point import PointToPoint
from weir.host_agent.torch.rendezvous import WHOLE, Members, StartCluster
from weir.host_agent.torch.splitting import SplittableGroup
from weir.host_agent.torch.staging import check_writable, devices_of, on_host, wait_here
from weir.host_agent.torch.work import QueuedWork, submit
from weir.wire.definition import MAX_WORKERS

BACKEND = "weir"
P = ParamSpec("P")


@dataclass(frozen=True)
class GroupOptions:
    """Options of a group: ``new_group(ranks, backend="weir", pg_options=GroupOptions(slots=16))``.

    Args:
        slots: how many of the switch's slots the group's job is to have; 0: a share of what is free. Divide
            them where many groups are made at once.
        lane_bits: 32, 16 or 8: bits that a value of a sum of float32, float16 or bfloat16 takes on the wire;
            several narrow ones share a lane of the switch, see docs/precision.md. "auto": the fewest whose
            error is within ``lane_error``.
        lane_error: with "auto": how much an average over the ranks may be off, relative to the largest
            magnitude within the 256 values around it.
        local: ranks of one host reduce in its memory and send once: "on" does so for all that share a machine
            and its network, "auto" for those that also have the same WEIR_HOST, "off" never. None: as the
            environment variable WEIR_LOCAL says, "auto" without it. See docs/collectives.md.
        exact: sum float32 as exactly as float64, in three lanes a value; sums of up to 1024 values always
            are.

    The same on all ranks of the group.
    """

    slots: int = 0
    lane_bits: LaneBits = 32
    lane_error: float = LANE_ERROR
    exact: bool = False
    local: LocalStep | None = None

    _timeout: ClassVar[timedelta | None] = None  # device meshes ask for one: the group's own

    @property
    def precision(self) -> Precision:
        """Return how float sums are made."""
        return Precision(self.lane_bits, self.lane_error, self.exact)


def collective(
    method: Callable[Concatenate["WeirProcessGroup", P], QueuedWork],
) -> Callable[Concatenate["WeirProcessGroup", P], QueuedWork]:
    """Decorate a method that issues an operation: where that fails, the other ranks are told."""

    @wraps(method)
    def issue(self: "WeirProcessGroup", /, *args: P.args, **kwargs: P.kwargs) -> QueuedWork:
        try:  # by hand: a context manager would cost each call microseconds
            return method(self, *args, **kwargs)
        except Exception as error:
            self.tell(error)
            raise

    return issue


@never_compiled
class WeirProcessGroup(SplittableGroup):
    """A process group on one job of the switch; made by torch, see ``register``.

    ``connection`` is its membership; ``collectives`` the blocking collectives, for use inside ``submit``.
    """

    def __init__(
        self,
        options: _DistributedBackendOptions,
        chosen: GroupOptions,
        connection: Connection,
        start: StartCluster,
    ) -> None:
        super().__init__(options, replace(chosen, slots=0), partial(create, start))
        self._timeout = options.timeout
        self.connection = connection
        self.collectives = LongCollectives(connection)
        self._device = DeviceCollectives(self.collectives)
        self._messages = PointToPoint(options.store, connection)
        self._first_used: list[torch.device] = []  # the CUDA device, once there is one

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
        """Queue ``run``, which may use ``collectives``, behind the operations issued before.

        Args:
            run: what to do, on the group's thread.
            timeout: of each reduction in it; None or a negative one, torch's "not set": the group's.
            devices: the CUDA devices it uses. There it runs on streams of the thread's own, behind what the
                caller's current streams have under way. It may return with work enqueued there.
            yields: it lets other operations of the group pass, see ``OperationQueue.passing``.
        """
        limit = timeout if timeout is not None and timeout > timedelta(0) else self._timeout
        self._first_used = self._first_used or list(devices[:1])

        def guarded() -> Any:
            with self.connection.deadline(limit):
                return self.connection.attempt(run)

        return submit(self.connection.operations, guarded, devices, group=self.connection, yields=yields)

    @contextlib.contextmanager
    def issuing(self) -> Iterator[None]:
        """Issue an operation in the block. Where the block raises, a failed operation takes its place, which
        tells the other ranks: they would wait for this one.
        """
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        """Queue an operation that fails with ``error``, in the place of one that could not be issued."""
        with contextlib.suppress(RuntimeError):  # the group is closed
            self.submit(partial(_raise, error))

    def _queue(self, opts: Any, run: Callable[[Any, Any], None], outputs: Any, inputs: Any) -> QueuedWork:
        """Queue ``run(outputs, inputs)``, both in host memory, which overwrites ``outputs``, its result.

        Args:
            inputs: tensors that are read. The same object as ``outputs``: the operation works in place.
        """

        check_writable(outputs)

        def operation() -> Any:
            on_host(run, outputs, inputs)
            return outputs

        return self.submit(operation, getattr(opts, "timeout", None), devices_of(outputs, inputs))

    def _queue_each(
        self,
        opts: Any,
        in_memory: Callable[[Any, Any], None],
        in_chunks: Callable[[Any, Any], None],
        is_long: Callable[[Any, Any], bool],
        outputs: Any,
        inputs: Any,
        result: Any = None,
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
        """
        check_writable(outputs)
        pairs = list(zip(outputs, inputs, strict=True))
        long = [pair for pair in pairs if is_long(*pair)]
        short = [pair for pair in pairs if not is_long(*pair)]
        taken = [output for output, _ in short]
        given = taken if outputs is inputs else [one for _, one in short]

        def run(outputs: Any, inputs: Any) -> None:
            for output, one in zip(outputs, inputs, strict=True):
                in_memory(output, one)

        def operation() -> Any:
            on_host(run, taken, given)
            for output, one in long:
                in_chunks(output, one)
            return outputs if result is None else result

        return self.submit(operation, getattr(opts, "timeout", None), devices_of(outputs, inputs))

    # Reductions.

    @collective
    def allreduce(self, tensors: Any, opts: Any = None) -> QueuedWork:
        """Overwrite each tensor by its reduction over all ranks."""
        tensors, op = _listed(tensors), _operator(opts)
        return self._queue_each(
            opts,
            lambda tensor, _: self.collectives.all_reduce(tensor, op),
            lambda tensor, _: self._device.all_reduce(tensor, op),
            lambda tensor, _: are_long(tensor),
            tensors,
            tensors,
        )

    allreduce_coalesced = allreduce

    @collective
    def reduce(self, tensors: Any, opts: Any) -> QueuedWork:
        """Overwrite the root's tensor by the reduction."""
        tensors, op, root = _listed(tensors), _operator(opts), opts.rootRank
        return self._queue_each(
            opts,
            lambda tensor, _: self.collectives.reduce(tensor, root, op),
            lambda tensor, _: self._device.reduce(tensor, root, op),
            lambda tensor, _: are_long(tensor),
            tensors,
            tensors,
        )

    @collective
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> QueuedWork:
        """Overwrite each output by this rank's part of the reduction of the input list beside it."""
        op = _operator(opts)
        return self._queue_each(
            opts,
            lambda output, parts: self.collectives.reduce_scatter(output, parts, op),
            lambda output, parts: self._device.reduce_scatter(output, parts, op),
            lambda output, parts: are_long(output, *parts),
            outputs,
            inputs,
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None
    ) -> QueuedWork:
        """Do a ``reduce_scatter`` of one tensor that holds all parts."""
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    _reduce_scatter_base = reduce_scatter_single

    @collective
    def reduce_scatter_single_coalesced(self, outputs: Any, wholes: Any, opts: Any = None) -> QueuedWork:
        """Do several ``reduce_scatter_single``."""
        op = _operator(opts)
        for output, whole in zip(outputs, wholes, strict=True):
            if not output._is_view() and (numbers := _parts_of(whole)) is not None:
                check_supported(op, numbers)
        return self._queue_each(
            opts,
            lambda output, whole: self.collectives.reduce_scatter_single(output, whole, op),
            lambda output, whole: self._device.reduce_scatter_single(output, whole, op),
            lambda output, whole: are_long_parts(output, whole, self.size()),
            outputs,
            wholes,
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Data movement.

    @collective
    def broadcast(self, tensors: Any, opts: Any) -> QueuedWork:
        """Overwrite each tensor by the root's."""
        tensors, root = _listed(tensors), opts.rootRank
        return self._queue_each(
            opts,
            lambda tensor, _: self.collectives.broadcast(tensor, root),
            lambda tensor, _: self._device.broadcast(tensor, root),
            lambda tensor, _: are_long(tensor),
            tensors,
            tensors,
        )

    @collective
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> QueuedWork:
        """Overwrite each output list by all ranks' input beside it."""
        return self._all_gather_lists(opts, outputs, inputs, outputs)

    @collective
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> QueuedWork:
        """Do an ``allgather`` with the lists transposed: ``outputs[r][i]`` gets rank r's ``inputs[i]``."""
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

    def all_gather_single(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> QueuedWork:
        """Do an ``allgather`` into one tensor that holds all parts."""
        return self.all_gather_single_coalesced([output], [own], opts)

    _allgather_base = all_gather_single

    @collective
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> QueuedWork:
        """Do several ``all_gather_single``."""
        return self._queue_each(
            opts,
            self.collectives.all_gather_single,
            self._device.all_gather_single,
            lambda output, own: are_long_parts(own, output, self.size()),
            outputs,
            inputs,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite the root's output list by all ranks' input."""
        root = opts.rootRank

        def run(outputs: Any, inputs: Any) -> None:
            for index, own in enumerate(inputs):
                self.collectives.gather(outputs[index] if outputs else [], own, root)

        return self._queue(opts, run, outputs, inputs)

    @collective
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> QueuedWork:
        """Overwrite each rank's output by its part of the root's input list."""
        root = opts.rootRank

        def run(outputs: Any, inputs: Any) -> None:
            for index, output in enumerate(outputs):
                self.collectives.scatter(output, inputs[index] if inputs else [], root)

        return self._queue(opts, run, outputs, inputs)

    @collective
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> QueuedWork:
        """Overwrite ``outputs[r]`` by rank r's input for this rank."""
        return self._queue(opts, self.collectives.all_to_all, outputs, inputs)

    @collective
    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> QueuedWork:
        """Do an ``alltoall`` along dimension 0 of one tensor."""

        def run(outputs: Any, wholes: Any) -> None:
            self.collectives.all_to_all_single(outputs[0], wholes[0], output_split_sizes, input_split_sizes)

        return self._queue(opts, run, [output], [whole])

    alltoall_base = all_to_all_single

    @collective
    def barrier(self, opts: Any = None) -> QueuedWork:
        """Return when every rank has called it.

        The work is done, too, that each caller's current stream had under way on its CUDA device: the one in
        ``dist.barrier(device_ids=...)``, or that the group is bound to, or that it was first used with.
        """
        devices = self._barrier_devices(opts)

        def operation() -> None:
            wait_here(devices)
            self.collectives.barrier()

        return self.submit(operation, getattr(opts, "timeout", None), devices)

    def _barrier_devices(self, opts: Any) -> list[torch.device]:
        """Return the CUDA device that a barrier is of, with its index, if there is one."""
        device = getattr(opts, "device", None)
        if device is None or device.type != "cuda":
            return self._first_used
        return [device if device.index is not None else torch.device("cuda", torch.cuda.current_device())]

    # Messages between two ranks.

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> QueuedWork:  # noqa: N803
        """Send the one tensor in the list to a rank that receives it, host to host."""
        return self._messages.send(_only(tensors), dstRank, tag, self._timeout)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> QueuedWork:  # noqa: N803
        """Overwrite the one tensor in the list by one that a rank sends."""
        return self._messages.receive(_only(tensors), srcRank, tag, self._timeout)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> QueuedWork:
        """Overwrite the one tensor in the list by one that any rank sends."""
        return self._messages.receive(_only(tensors), None, tag, self._timeout)

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
        """Bound every reduction begun from now on."""
        self._timeout = timeout

    def abort(self) -> None:
        """End the operation that is running, and the group; never blocks on other ranks."""
        self.connection.abort("this rank aborted the process group")

    def shutdown(self) -> None:
        """Leave the job; what is still running is aborted. Called by destroy_process_group."""
        self.connection.close()


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _only(tensors: Any) -> torch.Tensor:
    (tensor,) = _listed(tensors)
    return tensor


def _raise(error: Exception) -> NoReturn:
    raise error


def _parts_of(tensor: torch.Tensor) -> torch.dtype | None:
    """Return of which complex dtype a tensor is the real and imaginary parts, if that can be seen.

    torch's functional ``reduce_scatter_tensor`` hands complex numbers over so, whatever the operator.
    """
    base = tensor._base
    in_pairs = tensor.shape[-1:] == (2,) and tensor.stride(-1) == 1
    return base.dtype if base is not None and base.is_complex() and in_pairs else None


def _operator(opts: Any) -> RedOpType:
    """Return the operator in torch's options; sum when there are none."""
    if opts is None:
        return dist.ReduceOp.SUM
    op: RedOpType = getattr(opts.reduceOp, "op", opts.reduceOp)
    return op


@never_compiled
def create(
    start: StartCluster, options: _DistributedBackendOptions, group_options: GroupOptions | None = None
) -> WeirProcessGroup:
    """Join the job of a group that torch makes, and return the group when all its ranks have joined."""
    default = dist.distributed_c10d._world.default_pg
    if isinstance(default, WeirProcessGroup):
        default.connection.refuse_fork()  # its store's connection is the parent's
    rank, size = options.group_rank, options.group_size
    if size > MAX_WORKERS:
        raise ValueError(
            f"a process group of {size} ranks is more than three tiers of switches sum: "
            f"the weir backend takes at most {MAX_WORKERS}. Use fewer processes"
        )
    ranks = list(options.global_ranks_in_group) or list(range(size))
    whole = default is None
    remedy = f"were {size} processes started, as WORLD_SIZE says?" if whole else "have they called it, too?"
    members = Members(WHOLE if whole else "new_group", remedy=remedy)
    chosen = group_options or GroupOptions()
    chosen.precision.form(size)  # which refuses what so many ranks cannot have
    connection = open_connection(
        options.store,
        rank,
        ranks,
        options.group_id,
        options.timeout,
        start,
        chosen.slots,
        str(chosen) if chosen != GroupOptions() else "",
        chosen.local,
        members,
    )
    connection.precision = chosen.precision
    return WeirProcessGroup(options, chosen, connection, start)


def register(start: StartCluster) -> None:
    """Make ``init_process_group("weir")`` and ``new_group(backend="weir")`` work. Can be called twice.

    Args:
        start: starts a local cluster for groups that no controller was named for.
    """
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(
            BACKEND, partial(create, start), extended_api=True, devices=["cpu", "cuda"]
        )
