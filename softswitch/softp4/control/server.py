# SPDX-License-Identifier: Apache-2.0
"""Serves calls over a Unix socket, as softp4.control describes."""

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from softp4.control.address import ControlAddressError, answers

MAX_REQUEST: Final = 1 << 16
"""Bytes of a request, its newline included."""

_MAX_CONNECTIONS: Final = 16
_log = logging.getLogger(__name__)

Call = Callable[[dict[str, Any]], Any]
"""Takes the arguments of a request; returns what is sent as JSON. Raises CallError."""


class CallError(Exception):
    """A request that cannot be fulfilled; the message goes back to who made it."""


class ControlServer:
    """Listens at ``path`` until `close`; only the owner of this process may connect.

    Raises ControlAddressError when the socket cannot be made.
    """

    def __init__(self, path: Path, calls: Mapping[str, Call]) -> None:
        self.path = path
        self._calls = calls
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._closing = False
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._accept, name="control")
        self._thread.start()

    def close(self) -> None:
        """Stop listening, end every connection, remove the socket."""
        with self._guard:
            self._closing = True
            open_now = list(self._connections)
        for one in (self._listener, *open_now):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            with self._guard:
                admitted = not self._closing and len(self._connections) < _MAX_CONNECTIONS
                if admitted:
                    self._connections.add(connection)
            if not admitted:
                connection.close()
                continue
            threads = [thread for thread in threads if thread.is_alive()]
            threads.append(threading.Thread(target=self._serve, args=(connection,), name="control call"))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), connection, connection.makefile("rwb") as stream:
                while line := stream.readline(MAX_REQUEST):
                    _answer(stream, self._run(line))
                    if not line.endswith(b"\n"):
                        return  # longer than a request may be, or broken off: the rest makes no sense
        finally:
            with self._guard:
                self._connections.discard(connection)

    def _run(self, line: bytes) -> dict[str, Any]:
        try:
            name, arguments = _parse(line)
            call = self._calls.get(name)
            if call is None:
                raise CallError(f"there is no call {name!r}; there are {', '.join(sorted(self._calls))}")
            return {"result": call(arguments)}
        except CallError as error:
            return {"error": str(error)}
        except Exception as error:  # the switch goes on, whatever a call does
            _log.exception("a control call failed")
            return {"error": f"the call failed: {error!r}"}


def _parse(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CallError(f"a request is one line of JSON, of at most {MAX_REQUEST} bytes: {error}") from None
    arguments = request.get("args", {}) if isinstance(request, dict) else None
    if not isinstance(arguments, dict) or not isinstance(name := request.get("call"), str):
        raise CallError('a request is {"call": NAME, "args": {…}}')
    return name, arguments


def _answer(stream: BinaryIO | Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer).encode() + b"\n")
    stream.flush()


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not answers(path):
            path.unlink()  # of a switch that was killed
        mask = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(mask)
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "another switch listens there" if path.is_socket() else error.strerror or error
        raise ControlAddressError(f"control socket {path}: {reason}") from error
    return listener
