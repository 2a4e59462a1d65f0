# SPDX-License-Identifier: Apache-2.0
"""The driver of point-to-point messages: TCP connections between the ranks of a group, in one thread.

A rank listens and publishes its address in the group's store; anyone who has a message for it connects. A
connection that ends tells of the end of the process behind it.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from torch._C._distributed_c10d import Store

from softp4.native.json_text import parse_json
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.point_to_point.frames import (
    FRAME_BYTES,
    HELLO_BYTES,
    SECRET_BYTES,
    Frame,
    FrameKind,
    Hello,
)
from weir.host_agent.torch.point_to_point.inbox import Inbox, Offer, Receive, Send

_LOOK_S: Final = 0.2
_FIRST_LOOK_S: Final = 0.01
_GREETING_S: Final = 10.0
_FIRST_PAUSE_S: Final = 50e-6  # between looks whether a device has given a message
_LONGEST_PAUSE_S: Final = 1e-3
_LONGEST_REFUSAL: Final = 1 << 16  # bytes

_Task = Coroutine[Any, Any, None]


class MessageError(GroupBrokenError):
    """A message cannot be sent or received any more; names the rank and says why."""


class Members(Protocol):
    """Knowledge of a group's ranks; asked several times a second while somebody waits."""

    @property
    def broken(self) -> str | None:
        """Return why the group is over, or None while it is not."""

    @property
    def departed(self) -> dict[int, str]:
        """Ranks that left cleanly, with a sentence that says so."""


@dataclass(eq=False)
class _Channel:
    """One connection, from either side: what must be written on it, in this order."""

    rank: int
    queue: "asyncio.Queue[tuple[bytes | memoryview, Callable[[], None] | None]]" = field(
        default_factory=asyncio.Queue
    )
    sends: dict[int, Send] = field(default_factory=dict)  # by number, on the sender's side
    accepted: dict[int, Receive] = field(default_factory=dict)  # by number, on the receiver's side
    count: int = 0
    lost: str = ""  # why it is over

    def write(self, data: bytes | memoryview, then: Callable[[], None] | None = None) -> None:
        """Queue bytes; ``then`` is called when the kernel has them."""
        self.queue.put_nowait((data, then))


class Messenger:
    """The messages of one rank of a group; safe to call from any thread. Listens from the start.

    Args:
        rank: this process's, in the group.
        size: how many ranks the group has.
        store: the group's, for this alone: no other thread uses the same client of it.
        address: the IP address at which the other ranks reach this one.
        members: tells which of them are gone.
    """

    def __init__(self, rank: int, size: int, store: Store, address: str, members: Members) -> None:
        self._rank, self._size, self._store, self._members = rank, size, store, members
        self._inbox = Inbox()
        self._to: dict[int, _Channel] = {}
        self._from: dict[int, _Channel] = {}
        self._lost: dict[int, str] = {}  # nothing can come from them any more
        self._failed: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._closing = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(
            (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        )
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        store.set(_key(rank), json.dumps([address, port, self._secret.hex()]))
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="weir-messages")
        self._thread.start()

    def send(self, send: Send) -> None:
        """Begin to send; the outcome tells of its end. MessageError is an outcome, too."""
        self._call(self._send, send, send.outcome)

    def receive(self, receive: Receive) -> None:
        """Begin to receive; the outcome tells of its end. MessageError is an outcome, too."""
        self._call(self._receive, receive, receive.outcome)

    def fail(self, reason: str) -> None:
        """End all that is under way, and all that comes later, with this reason."""
        with contextlib.suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(self._fail, reason)

    def close(self) -> None:
        """End all that is under way and the connections; can be called twice."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._ended.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _call(self, begin: Callable[[Any], None], what: Send | Receive, outcome: Future[int]) -> None:
        with self._closing:
            if not self._closed:
                self._loop.call_soon_threadsafe(begin, what)
                return
        outcome.set_exception(MessageError("the process group was destroyed: it sends and receives no more"))

    # ---- in the thread

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        self._begin(self._listen())
        self._begin(self._look())
        await self._ended.wait()
        self._fail("the process group was destroyed while this was under way")
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: _Task) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _send(self, send: Send) -> None:
        rank = send.destination
        channel = self._to.get(rank)
        lost = self._members.departed.get(rank) if channel is None else channel.lost
        if reason := self._failed or lost:
            send.outcome.set_exception(self._undelivered(send, reason))
            return
        if channel is None:
            channel = self._to[rank] = _Channel(rank)
            self._begin(self._reach(channel))
        channel.count += 1
        channel.sends[channel.count] = send
        channel.write(Frame(FrameKind.OFFER, channel.count, send.tag, send.data.nbytes, send.dtype).encode())

    def _receive(self, receive: Receive) -> None:
        if (offer := self._inbox.post(receive)) is not None:
            self._take(offer, receive)
        self._drop_hopeless()

    def _take(self, offer: Offer, receive: Receive) -> None:
        """Accept an offer for a receive, or refuse it where they do not fit."""
        channel = self._from[offer.source]
        if (misfit := offer.misfit(receive, self._rank)) is not None:
            receive.outcome.set_exception(ValueError(misfit))
            channel.write(Frame(FrameKind.REFUSE, offer.number, size=len(misfit.encode())).encode())
            channel.write(misfit.encode())
        else:
            channel.accepted[offer.number] = receive
            channel.write(Frame(FrameKind.ACCEPT, offer.number).encode())

    async def _listen(self) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(self._listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(self._attend(connection))

    async def _attend(self, connection: socket.socket) -> None:
        """Serve a connection that another rank has opened, until it ends."""
        with connection, contextlib.suppress(OSError, EOFError, ValueError, TimeoutError):
            connection.setblocking(False)
            greeting = await asyncio.wait_for(self._read(connection, HELLO_BYTES), _GREETING_S)
            hello = Hello.decode(greeting)
            if not hmac.compare_digest(hello.secret, self._secret) or hello.rank in self._from:
                return
            channel = self._from[hello.rank] = _Channel(hello.rank)
            writing = self._begin(self._write(connection, channel))
            try:
                while True:
                    await self._heard(connection, channel)
            finally:
                writing.cancel()
                self._lose(channel)

    async def _heard(self, connection: socket.socket, channel: _Channel) -> None:
        frame = Frame.decode(await self._read(connection, FRAME_BYTES))
        if frame.kind is FrameKind.OFFER:
            offer = Offer(channel.rank, frame.number, frame.tag, frame.size, frame.dtype)
            if (receive := self._inbox.offered(offer)) is not None:
                self._take(offer, receive)
        elif frame.kind is FrameKind.DATA:
            if (receive := channel.accepted.get(frame.number)) is None:
                raise ValueError(f"message {frame.number} was not accepted")
            await self._fill(connection, receive.data)
            del channel.accepted[frame.number]
            if not receive.outcome.done():
                _complete(receive, channel.rank)

    async def _reach(self, channel: _Channel) -> None:
        """Connect to a rank, and write what is queued for it until the connection ends."""
        try:
            address, port, secret = await self._published(channel.rank)
            with await self._connected(address, port) as connection:
                hello = Hello(self._rank, bytes.fromhex(secret))
                await self._loop.sock_sendall(connection, hello.encode())
                writing = self._begin(self._write(connection, channel))
                try:
                    while True:
                        await self._answered(connection, channel)
                finally:
                    writing.cancel()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._undo(channel, _ended(channel.rank))
        except (OSError, RuntimeError, ValueError) as error:  # of the store, and of what is no frame
            self._undo(channel, f"rank {channel.rank} cannot be reached: {error}")

    async def _published(self, rank: int) -> tuple[str, int, str]:
        """Return a rank's address, port and secret, when it has begun to send or receive, too."""
        pause = _FIRST_LOOK_S
        while not self._store.check([_key(rank)]):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_S)
        try:
            address, port, secret = parse_json(self._store.get(_key(rank)))
            return str(address), int(port), str(secret)
        except (ValueError, TypeError) as error:
            raise ValueError(f"its address in the store cannot be read: {error}") from None

    async def _connected(self, address: str, port: int) -> socket.socket:
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(connection, (address, port))
        except OSError as error:
            connection.close()
            raise OSError(f"nobody answers at {address}, port {port}: {error.strerror}") from None
        return connection

    async def _answered(self, connection: socket.socket, channel: _Channel) -> None:
        frame = Frame.decode(await self._read(connection, FRAME_BYTES))
        send = channel.sends.get(frame.number)
        if send is None:
            raise EOFError  # it was undone
        if frame.kind is FrameKind.ACCEPT:
            self._begin(self._deliver(channel, frame.number, send))
        elif frame.kind is FrameKind.REFUSE:
            if frame.size > _LONGEST_REFUSAL:
                raise ValueError(f"it refuses a message in {frame.size} bytes")
            words = (await self._read(connection, frame.size)).decode(errors="replace")
            del channel.sends[frame.number]
            _settle(send.outcome, ValueError(words))

    async def _deliver(self, channel: _Channel, number: int, send: Send) -> None:
        """Queue the bytes of a message, when they are there, if it was not undone meanwhile."""
        try:
            pause = _FIRST_PAUSE_S
            while not send.is_ready():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        except Exception as error:  # of a device: it belongs to anyone who waits
            _settle(send.outcome, error)
            channel.sends.pop(number, None)
        if number in channel.sends:
            channel.write(Frame(FrameKind.DATA, number, size=send.data.nbytes).encode())
            channel.write(send.data, lambda: self._sent(channel, number))

    def _sent(self, channel: _Channel, number: int) -> None:
        if (send := channel.sends.pop(number, None)) is not None:
            send.outcome.set_result(send.destination)

    async def _write(self, connection: socket.socket, channel: _Channel) -> None:
        with contextlib.suppress(OSError):  # anyone who reads from it finds that it has ended
            while True:
                data, then = await channel.queue.get()
                await self._loop.sock_sendall(connection, data)
                if then is not None:
                    then()

    async def _read(self, connection: socket.socket, size: int) -> bytes:
        data = bytearray(size)
        await self._fill(connection, memoryview(data))
        return bytes(data)

    async def _fill(self, connection: socket.socket, data: memoryview) -> None:
        """Fill ``data`` from a connection; EOFError when it ends before."""
        while data.nbytes:
            count = await self._loop.sock_recv_into(connection, data)
            if not count:
                raise EOFError
            data = data[count:]

    # ---- ends

    async def _look(self) -> None:
        """End what waits for ranks that are gone, which the controller tells."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._failed is None and (reason := self._members.broken):
                self._fail(reason)
            for rank, words in self._members.departed.items():
                self._lost.setdefault(rank, words)  # it has seen to the end of what it sent
                if (channel := self._to.get(rank)) is not None:
                    self._undo(channel, words)
            self._drop_hopeless()

    def _fail(self, reason: str) -> None:
        """End everything, and the connections, by which the other ranks know."""
        self._failed = self._failed or reason
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        for channel in self._to.values():
            self._undo(channel, self._failed)
        for channel in self._from.values():
            self._abandon(channel, self._failed)
        self._drop_hopeless()

    def _lose(self, channel: _Channel) -> None:
        """Fail what was to come from a rank whose connection has ended."""
        words = self._lost.setdefault(channel.rank, _ended(channel.rank))
        self._inbox.forget(channel.rank)
        self._abandon(channel, words)
        self._drop_hopeless()

    def _abandon(self, channel: _Channel, reason: str) -> None:
        """Fail the receives that a channel was filling."""
        for receive in channel.accepted.values():
            _settle(receive.outcome, self._unreceived(receive, reason))

    def _undo(self, channel: _Channel, reason: str) -> None:
        """Fail the sends of a channel, and those to come."""
        channel.lost = channel.lost or reason
        for send in channel.sends.values():
            _settle(send.outcome, self._undelivered(send, reason))
        channel.sends.clear()

    def _drop_hopeless(self) -> None:
        """Fail the receives that nothing can come for any more."""
        for receive in self._inbox.take(lambda receive: self._hopeless(receive) is not None):
            _settle(receive.outcome, self._unreceived(receive, self._hopeless(receive) or ""))

    def _hopeless(self, receive: Receive) -> str | None:
        if self._failed is not None:
            return self._failed
        if receive.source is not None:
            return self._lost.get(receive.source)
        others = set(range(self._size)) - {self._rank}
        return "all other ranks are gone" if others and others <= self._lost.keys() else None

    def _undelivered(self, send: Send, reason: str) -> MessageError:
        return MessageError(f"rank {self._rank} cannot send to rank {send.destination}: {reason}")

    def _unreceived(self, receive: Receive, reason: str) -> MessageError:
        source = "any rank" if receive.source is None else f"rank {receive.source}"
        return MessageError(f"rank {self._rank} cannot receive from {source}: {reason}")


def _complete(receive: Receive, source: int) -> None:
    try:
        receive.finish()
    except Exception as error:  # of a device, say: it belongs to anyone who waits
        receive.outcome.set_exception(error)
    else:
        receive.outcome.set_result(source)


def _settle(outcome: Future[int], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)


def _ended(rank: int) -> str:
    return f"rank {rank} has closed its connection: it left the group, its messages failed, or it ended"


def _key(rank: int) -> str:
    return f"weir/messages/{rank}"
