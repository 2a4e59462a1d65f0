# SPDX-License-Identifier: Apache-2.0
"""Tensors as point-to-point messages, and the handles that torch waits for."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from weir.agent_service.waiting import FIRST_S, next_line
from weir.host_agent.collectives.tensor_memory import byte_view, overwrite
from weir.host_agent.compression.transfer import begin_copy, mark
from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.point_to_point.inbox import Receive, Send
from weir.host_agent.torch.point_to_point.messenger import MessageError, Messenger
from weir.host_agent.torch.silent_store import within
from weir.host_agent.torch.staging import CallerStreams, check_writable, devices_of, to_device
from weir.host_agent.torch.work import QueuedWork
from weir.host_agent.transport.operations import OperationQueue

log = logging.getLogger(__name__)


class PointToPoint:
    """Sends and receives tensors between the ranks of a group. Nothing is opened before the first of them.

    Args:
        store: the group's.
        connection: the group's membership; when it ends, so do the messages.
    """

    def __init__(self, store: Store, connection: Connection) -> None:
        self._connection = connection
        # Names go with the job: a group can be made again on the same store.
        self._store: Any = PrefixStore(f"weir/{connection.job}", store)
        self._opening = threading.Lock()
        self._messenger: Messenger | None = None
        self._closed = False
        connection.at_close(self.close)

    def send(self, tensor: torch.Tensor, destination: int, tag: int, timeout: timedelta) -> QueuedWork:
        """Begin to send a dense tensor; done when a receive on the other side is taking it.

        Args:
            tensor: not to be changed before this is done. One on a CUDA device is copied behind the work that
                the current stream has under way, which this thread does not wait for.
            destination: a rank of the group.
            tag: only a receive with the same one takes it.
            timeout: how long ``wait`` waits.
        """
        caller = CallerStreams(devices_of(tensor))
        with caller.followed():
            host, is_ready = _fetched(tensor.detach().resolve_conj().resolve_neg())
        send = Send(destination, tag, _name(tensor.dtype), byte_view(host).data, is_ready)
        messenger = self._opened(timeout)
        messenger.send(send)
        whom = f"rank {destination} to receive (tag {tag})"
        return self._work(send, messenger, timeout, whom, caller, tensor)

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, timeout: timedelta) -> QueuedWork:
        """Begin to receive into a dense tensor of the size and dtype that was sent.

        Args:
            tensor: overwritten, whatever its strides.
            source: a rank of the group; None: anyone who sends first.
            tag: of the message.
            timeout: how long ``wait`` waits.

        Raises:
            ValueError: elements of the tensor share memory.
        """
        check_writable(tensor)
        devices = devices_of(tensor)
        target = tensor.detach()
        in_place = not (devices or target.is_conj() or target.is_neg()) and target.is_contiguous()
        host = target if in_place else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=bool(devices))
        caller = CallerStreams(devices)

        def finish() -> None:
            with caller.followed():
                if devices:
                    to_device(target, host)
                elif not in_place:
                    overwrite(target, host)

        receive = Receive(source, tag, _name(tensor.dtype), byte_view(host).data, finish)
        messenger = self._opened(timeout)
        messenger.receive(receive)
        whom = "any rank" if source is None else f"rank {source}"
        return self._work(receive, messenger, timeout, f"{whom} to send (tag {tag})", caller, tensor)

    def _work(
        self,
        message: Send | Receive,
        messenger: Messenger,
        timeout: timedelta,
        waits_for: str,
        streams: CallerStreams,
        tensor: torch.Tensor,
    ) -> "MessageWork":
        operations = self._connection.operations
        return MessageWork(message.outcome, messenger, operations, timeout, waits_for, streams, [tensor])

    def close(self) -> None:
        """End what is under way, and the connections."""
        with self._opening:
            self._closed = True
        if self._messenger is not None:
            self._messenger.close()

    def _opened(self, timeout: timedelta) -> Messenger:
        self._connection.refuse_fork()
        with self._opening:
            if self._closed:
                raise RuntimeError("the process group was destroyed: it takes no more messages")
            if self._messenger is None:
                rank, size = self._connection.rank, self._connection.size
                address = own_address(self._store, self._connection.facts.controller)
                store = within(timeout.total_seconds(), self._store.clone)
                self._messenger = Messenger(rank, size, store, address, self._connection)
            return self._messenger


@never_compiled
class MessageWork(QueuedWork):
    """A message on its way. ``wait`` is bounded by the group's timeout, and logs what it waits for."""

    def __init__(
        self,
        outcome: Future[int],
        messenger: Messenger,
        operations: OperationQueue,
        timeout: timedelta,
        waits_for: str,
        streams: CallerStreams,
        written: Sequence[torch.Tensor],
    ) -> None:
        super().__init__(outcome, streams, written)
        self._messenger, self._operations = messenger, operations
        self._timeout, self._waits_for = timeout, waits_for

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it is done, as QueuedWork does.

        Raises:
            MessageError: a rank is gone; or it took longer than the group's timeout, and then no more
                messages can be sent or received on this rank of the group.
        """
        if timeout is not None and timeout > timedelta(0):
            return super().wait(timeout)
        self._awaited = True
        began, due, limit = time.monotonic(), FIRST_S, self._timeout.total_seconds()
        while True:
            left = min(due, limit) - (time.monotonic() - began)
            try:
                self._outcome.exception(max(left, 0.0))
            except TimeoutError:
                if due < limit:
                    log.warning("after %.0f s still waiting for %s", due, self._waits_for)
                    due = next_line(due)
                    continue
                reason = f"timed out: after {limit:g} s still waiting for {self._waits_for}"
                self._messenger.fail(reason)
                raise MessageError(reason) from None
            return super().wait()

    def _follow(self, callback: Callable[[], None]) -> None:
        """See QueuedWork. The thread of the messages carries others meanwhile."""
        if self._outcome.done():
            callback()
        else:
            self._outcome.add_done_callback(lambda _outcome: self._operations.beside(callback))

    def _source_rank(self) -> int:
        """Return the rank that the message came from; torch asks when it is done."""
        source: int = self._outcome.result()
        return source


def _fetched(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], bool]]:
    """Begin to bring a tensor's values into host memory; return them, and what tells whether they are there.

    The copying goes on when this returns: the message thread looks from time to time, and carries others.
    """
    if not tensor.is_cuda:
        return tensor.contiguous(), lambda: True
    copy = begin_copy(tensor)
    tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return copy, mark(tensor.device).query


def own_address(store: Any, controller: str) -> str:
    """Return the address at which other ranks reach this process.

    It is that of the interface on the way to where all ranks go: the store, or else the controller. Loopback
    where both are on this machine.

    Args:
        store: the group's.
        controller: the controller's address.
    """
    places = [getattr(store._underlying_non_prefix_store, "host", None)]  # a TCPStore has one
    if not controller.startswith("unix:"):
        places.append(urlsplit(f"//{controller}").hostname)
    found = [_address_towards(place) for place in places if place]
    beyond = [address for address in found if not address.startswith("127.") and address != "::1"]
    return next(iter([*beyond, *found]), "127.0.0.1")


def _address_towards(host: str) -> str:
    family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing
        address: str = probe.getsockname()[0]
    return address


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
