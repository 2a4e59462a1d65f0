# SPDX-License-Identifier: Apache-2.0
"""Children forked from one process that has imported their module: torch then costs its seconds once.

``Template`` starts ``python -m weir.process.template MODULE`` and asks it for children over its standard
input, a Unix socket. The template has one thread, so that it may fork. Each child calls the module's
``main``, and ends with the process that holds the ``Template``, as other children do
(:mod:`weir.process.child`).
"""

import atexit
import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

from weir.process import become
from weir.process.child import BECOME, PARENT, Child, ChildError, end, follow_parent, identity, log_tail
from weir.process.imports import import_for_good

_MESSAGE: Final = 4096  # bytes; the longer part of a request comes in a file
_FILES: Final = 4  # the request, and the child's streams


class Forked:
    """A child of a template, with the part of ``subprocess.Popen`` that callers need."""

    def __init__(self, template: "Template", stdin: IO[bytes], stdout: IO[bytes] | None) -> None:
        """``stdin`` and ``stdout`` are the parent's ends of its pipes."""
        self.stdin, self.stdout = stdin, stdout
        self.pid = 0
        self.returncode: int | None = None
        self.started, self.ended = threading.Event(), threading.Event()
        self._template = template

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None of a child that runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. Raises subprocess.TimeoutExpired."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"child {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._template.send_signal(self, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._template.send_signal(self, signal.SIGKILL)


class Template:
    """A process that has imported a module and forks children that run it; it ends with this process."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        """Start importing; ``fork`` waits for that.

        Args:
            module: has a function ``main`` that takes no arguments.
            environment: added to this process's. Libraries read some variables as they are loaded, such as
                OMP_NUM_THREADS.
            log: file that receives what the import prints.
        """
        self._module, self._log = module, log
        self._numbers = itertools.count()
        self._children: dict[int, Forked] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start(module, theirs, log, environment)
        self._reader = threading.Thread(target=self._listen, name="template", daemon=True)
        self._reader.start()

    @property
    def runs(self) -> bool:
        """True while it can fork."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; its children should have ended."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        end([self._process])
        self._reader.join()
        self._control.close()

    def fork(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        pipe: bool = False,
        prefix: Sequence[str] = (),
    ) -> Forked:
        """Start a child, as ``weir.process.child.spawn`` does.

        Args:
            arguments: the child's ``sys.argv[1:]``.
            log: file that receives its standard error, and its output without ``pipe``.
            environment: added to this process's.
            pipe: whether its standard output is a pipe, ``stdout`` of the result.
            prefix: a namespace's ``prefix``, which the child enters; or empty.

        Raises:
            ChildError: the module cannot be imported; the message ends with the log.
        """
        request = {
            "arguments": list(arguments),
            "environment": {**os.environ, **environment},
            "folder": str(Path.cwd()),
            "become": _options(prefix),
            "name": log.stem,
        }
        with contextlib.ExitStack() as files:
            errors = files.enter_context(log.open("ab"))
            read, write = os.pipe()
            stdin, child_stdin = os.fdopen(write, "wb"), files.enter_context(os.fdopen(read, "rb"))
            output, child_output = None, errors
            if pipe:
                read, write = os.pipe()
                output, child_output = os.fdopen(read, "rb"), files.enter_context(os.fdopen(write, "wb"))
            body = files.enter_context(os.fdopen(os.memfd_create("request"), "wb"))
            body.write(json.dumps(request).encode())
            body.flush()
            child = Forked(self, stdin, output)
            number = next(self._numbers)
            self._children[number] = child
            passed = [file.fileno() for file in (body, child_stdin, child_output, errors)]
            try:
                socket.send_fds(self._control, [json.dumps({"fork": number}).encode()], passed)
            except OSError:  # it has ended
                child.started.set()
        child.started.wait()
        if not child.pid:
            raise ChildError(f"{self._module} cannot start:\n{log_tail(self._log)}")
        return child

    def send_signal(self, child: Forked, number: int) -> None:
        """Send a signal to a child, unless it has ended: the template knows."""
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"pid": child.pid, "signal": number}).encode())

    def _listen(self) -> None:
        """Take in how children begin and end, until the template has."""
        while answer := self._receive():
            if "pid" in answer:
                child = self._children[answer["child"]]
                child.pid = answer["pid"]
                child.started.set()
            else:
                child = self._children.pop(answer["child"])
                child.returncode = answer["status"]
                child.ended.set()
        status = self._process.wait()
        for child in list(self._children.values()):
            child.returncode = status
            child.started.set()
            child.ended.set()

    def _receive(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            if message := self._control.recv(_MESSAGE):
                return dict(json.loads(message))
        return {}


def start(module: str, control: socket.socket, log: Path, environment: Mapping[str, str]) -> Child:
    """Start a template's process, which hears over ``control`` which children to fork: see ``Template``."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-u", "-P", "-m", "weir.process.template", module],
            stdin=control.fileno(),
            stdout=out,
            stderr=out,
            env={**os.environ, **environment, PARENT: identity(os.getpid())},
            start_new_session=True,
        )


_shared: Final[dict[tuple[str, frozenset[tuple[str, str]]], Template]] = {}
_lock: Final = threading.Lock()


def shared_template(module: str, environment: Mapping[str, str], log: Path) -> Template:
    """Return this process's template for a module, started unless it runs. Arguments as of ``Template``."""
    with _lock:
        key = module, frozenset(environment.items())
        if key not in _shared or not _shared[key].runs:
            _shared[key] = Template(module, environment, log)
            atexit.register(_shared[key].close)
        return _shared[key]


def _options(prefix: Sequence[str]) -> list[str]:
    """Return the options of :mod:`weir.process.become` in a command's prefix."""
    if not prefix:
        return []
    assert (*prefix[: len(BECOME)], prefix[-1]) == (*BECOME, "--"), prefix
    return list(prefix[len(BECOME) : -1])


def main() -> None:
    """Import the module on the command line; fork children until the parent closes the socket or ends."""
    serve(sys.argv[1], socket.socket(fileno=os.dup(0)))


def serve(name: str, control: socket.socket) -> None:
    """Do the same with a module of this name and this socket, which it closes."""
    module = import_for_good(name)
    with control:
        files = _serve(control)
    if files is not None:
        _run(module, files)


def _serve(control: socket.socket) -> list[int] | None:
    """Serve requests. Returns None at the end of the parent, and in each child its request's files."""
    running: dict[int, tuple[int, int]] = {}  # pidfd: process id, number of the child
    with selectors.DefaultSelector() as waiting:
        waiting.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd in running:
                    pid, number = running.pop(key.fd)
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    _answer(control, {"child": number, "status": status})
                    continue
                message, files, _, _ = socket.recv_fds(control, _MESSAGE, _FILES)
                if not message:
                    return None
                request = json.loads(message)
                if "signal" in request:
                    if request["pid"] in (pid for pid, _ in running.values()):
                        os.kill(request["pid"], request["signal"])
                    continue
                pid = os.fork()
                if pid == 0:
                    for watched in running:
                        os.close(watched)
                    return files
                for file in files:
                    os.close(file)
                watched = os.pidfd_open(pid)
                running[watched] = pid, request["fork"]
                waiting.register(watched, selectors.EVENT_READ)
                _answer(control, {"child": request["fork"], "pid": pid})


def _answer(control: socket.socket, answer: Mapping[str, int]) -> None:
    with contextlib.suppress(OSError):  # the parent has ended: the next read says so
        control.send(json.dumps(answer).encode())


def _run(module: ModuleType, files: Sequence[int]) -> None:
    """Become the child that a request describes, and run the module."""
    os.setsid()
    with os.fdopen(files[0], "rb") as body:
        body.seek(0)
        request = json.load(body)
    for stream, file in enumerate(files[1:]):
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    become.enter(request["become"])
    follow_parent()
    Path("/proc/self/comm").write_text(request["name"])  # for ps and top
    sys.argv = [str(module.__file__), *request["arguments"]]
    module.main()


if __name__ == "__main__":
    main()
