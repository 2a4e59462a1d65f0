# SPDX-License-Identifier: Apache-2.0
"""The controller's port: limits, and one log line for what is refused, around the agent service.

Anyone who reaches the port may send anything. What is no request, too long, too often or too many at a time
is refused here; the service sees the rest.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import grpc

from softp4 import protobuf
from weir.agent_service.proto import METHODS
from weir.controller.jobs import JobError, Refusal
from weir.controller.limits import (
    MOST_PAGE_TOKEN,
    MOST_REQUEST_BYTES,
    Junk,
    address_of,
    check_join,
    check_token,
    parsed,
    shortened,
)
from weir.controller.log_lines import LogLines
from weir.controller.service import AgentService, status_of
from weir.controller.throttle import MOST_WAITING_OF_ONE, TokenGuesses, Waiting

log = logging.getLogger(__name__)

FIRST_BEAT_S: Final = 10.0  # what a stream gets to say whose it is
HANDSHAKE_MS: Final = 10_000  # what a connection gets to say that it is one of gRPC's
MOST_SILENT: Final = 4096  # streams that have not said whose they are; one more ends the oldest
MOST_STATUS: Final = 64  # calls of one address that wait at a time: one for each worker of a host
BEAT_PAUSE_S: Final = 0.01  # between two heartbeats of a stream that are read
_KEEPALIVE_MS: Final = 10_000
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MOST_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", 1024),  # of one connection: a process has one for each group, and joins
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),  # so that a connection whose machine died ends
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ("grpc.http2.max_pings_without_data", 0),
)


def options() -> tuple[tuple[str, int], ...]:
    """Return the gRPC server's options."""
    return (*OPTIONS, ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS))


class Port:
    """The agent service as anybody may call it.

    Args:
        service: answers the calls that are let through.
    """

    def __init__(self, service: AgentService) -> None:
        self._service = service
        self._guesses = TokenGuesses()
        self._stray_guesses = TokenGuesses()  # with ids that no job has, slowed as if one had them
        self._joins = Waiting("joins", MOST_WAITING_OF_ONE)
        self._statuses = Waiting("status requests", MOST_STATUS)
        self._silent: dict[asyncio.Timeout, None] = {}  # of streams, the oldest first
        self._lines = LogLines(log)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what makes a gRPC server call this."""
        return protobuf.handler(self, METHODS, parse=parsed)

    def close(self) -> None:
        """Write the log lines that are still to come."""
        self._lines.close()

    # ---- the four calls

    async def Join(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        call = _Call(self, "Join", context)
        await call.refuse_junk(request)
        call.job, call.guess = request.job, request.token
        try:
            check_join(request)
            with _counted(self._joins, call):
                await self._turn(call)
                return await self._service.Join(request, call)
        except JobError as error:
            await call.refuse(error)

    async def Attend(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        call = _Call(self, "Attend", context)
        try:
            first = await self._first(requests, call)
            if first is None:
                return
            self._names(call, first)
            check_token(first)
            await self._turn(call)
            await self._service.attend(first, self._beats(requests, call), call)
        except JobError as error:
            await call.refuse(error)

    async def Leave(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        call = _Call(self, "Leave", context)
        await call.refuse_junk(request)
        self._names(call, request)
        try:
            check_token(request)
            await self._turn(call)
            return await self._service.Leave(request, call)
        except JobError as error:
            await call.refuse(error)

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        """See agent.proto."""
        call = _Call(self, "Status", context)
        await call.refuse_junk(request)
        try:
            if len(request.page_token) > MOST_PAGE_TOKEN:
                raise JobError(Refusal.INVALID, f"page_token: it may have {MOST_PAGE_TOKEN} characters")
            check_token(request)
            with _counted(self._statuses, call):
                if request.token:
                    call.job, call.guess = request.job, request.token
                    await self._turn(call)
                    self._service.refuse_wrong_token(request.job, request.token)
                return await self._service.Status(request, call)
        except JobError as error:
            await call.refuse(error)

    # ---- inside

    def _names(self, call: "_Call", request: Any) -> None:
        """Note which job a member's request is about."""
        call.guess = request.token
        call.job = self._service.name_of(request.job_id)
        if not call.job:
            call.job, call.guesses = f"{request.job_id:#010x}", self._stray_guesses

    async def _turn(self, call: "_Call") -> None:
        """Wait until a token of this address may be looked at. Raises JobError when too many others wait.

        Look at it at once: were there an ``await`` in between, many could be looked at before one is counted.
        """
        wait = call.guesses.turn(call.who, call.job, call.guess, time.monotonic())
        if wait is None:
            raise JobError(
                Refusal.EXHAUSTED,
                f"too many wrong tokens for {call.what} from {call.who}: the token was not checked; try "
                f"again in a few seconds",
            )
        if wait:
            await asyncio.sleep(wait)

    async def _first(self, requests: AsyncIterator[Any], call: "_Call") -> Any:
        """Return the first message of a stream; None if it ends without one."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + FIRST_BEAT_S
        if len(self._silent) >= MOST_SILENT:
            next(iter(self._silent)).reschedule(loop.time())
        limit = asyncio.timeout(FIRST_BEAT_S)
        try:
            async with limit:
                self._silent[limit] = None
                first = await anext(aiter(requests), None)
        except TimeoutError:
            if loop.time() < ends:
                raise JobError(Refusal.EXHAUSTED, f"{MOST_SILENT} newer streams have no heartbeat") from None
            raise JobError(
                Refusal.INVALID, f"no heartbeat came in {FIRST_BEAT_S:g} s, so the stream is nobody's"
            ) from None
        finally:
            self._silent.pop(limit, None)
        await call.refuse_junk(first)
        return first

    async def _beats(self, requests: AsyncIterator[Any], call: "_Call") -> AsyncIterator[Any]:
        """Yield the heartbeats of a stream, not faster than anybody needs. Junk ends it."""
        async for beat in requests:
            if isinstance(beat, Junk):
                self.note(call, f"a heartbeat of {beat.size} bytes is no message")
                return
            yield beat
            await asyncio.sleep(BEAT_PAUSE_S)

    def refused(self, call: "_Call", code: grpc.StatusCode, words: str) -> None:
        """Hear that a call was refused."""
        if code in _WRONG_TOKEN:
            call.guesses.wrong(call.who, call.job, call.guess, time.monotonic())
        if code in _NOTED:
            self.note(call, words, code.name)

    def note(self, call: "_Call", words: str, kind: str = "junk") -> None:
        """Log what an address did, once; count what is like it."""
        self._lines.write(f"{call.method} {call.who} {kind}", f"{call.method} from {call.who}: {words}")


@contextlib.contextmanager
def _counted(waiting: Waiting, call: "_Call") -> Iterator[None]:
    """Count a call as one that waits. Raises JobError when too many do."""
    if why := waiting.enter(call.who):
        raise JobError(Refusal.EXHAUSTED, f"{why}; try again later")
    try:
        yield
    finally:
        waiting.leave(call.who)


_WRONG_TOKEN: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND)
_NOTED: Final = (
    *_WRONG_TOKEN,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class _Call:
    """A call, as the service sees it: its refusals are counted and cut to what gRPC carries.

    ``guess`` is the token that it shows, for ``job``, whose wrong ones are in ``guesses``.
    """

    def __init__(self, port: Port, method: str, context: Any) -> None:
        self.method, self.who, self.job, self.guess = method, address_of(context.peer()), "", ""
        self.guesses = port._guesses
        self.on_socket = context.peer().startswith("unix:")
        self._port, self._context = port, context

    @property
    def what(self) -> str:
        """The token's subject, in the caller's own words: an unknown id is not confirmed to be a job's."""
        return f"job {self.job!r}" if self.method in ("Join", "Status") else "this job"

    async def abort(self, code: grpc.StatusCode, words: str) -> None:
        """Refuse the call."""
        words = shortened(words)
        self._port.refused(self, code, words)
        await self._context.abort(code, words)

    async def write(self, event: Any) -> None:
        """Send an event."""
        await self._context.write(event)

    async def refuse(self, error: JobError) -> None:
        """Refuse the call because of an error."""
        await self.abort(status_of(error.refusal), str(error))

    async def refuse_junk(self, request: Any) -> None:
        """Refuse bytes that are no request."""
        if isinstance(request, Junk):
            await self.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{request.size} bytes are no {self.method} request: does the other side run this Weir?",
            )
