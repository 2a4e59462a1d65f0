# SPDX-License-Identifier: Apache-2.0
"""`simple_switch_grpc` as a function from frames to frames: its gRPC data plane, no interfaces, no root.

BMv2 ends the answer to a stream of frames only when it holds no packet any more, and says of every frame that
leaves which one caused it. So nothing here waits for time to pass, and any port number exists.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from softp4.channels import open_channel
from softp4.p4rt.encoding import varint
from tests.harness.p4runtime import P4Runtime
from tests.harness.ports import free_port

_TIMEOUT: Final = 60.0
_LAST_WORDS: Final = 2.0  # seconds in which a process that broke a connection ends, if it does
_METHOD: Final = "/p4.bm.DataplaneInterface/PacketStream"


class Bmv2DiedError(RuntimeError):
    """The switch has ended; the message has its last words."""


class Bmv2Stream:
    """A running `simple_switch_grpc` with one program.

    Attributes:
        control: the P4Runtime connection, which is primary.
        address: where P4Runtime is served.
        device: the device id there.
    """

    def __init__(self, program: Path, p4info: Path, options: Sequence[str] = ()) -> None:
        """Start a switch and load the program. ``options`` are of the target (``--priority-queues`` …)."""
        self._cleanup = contextlib.ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="softp4-bmv2-"))
        self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        self.device = os.getpid()
        try:
            self._log = self._cleanup.enter_context((folder / "log").open("w+"))
            general = ["--no-p4", "--device-id", str(self.device)]
            general += ["--thrift-port", str(free_port())]  # which it serves without being asked
            packets, self.address = f"unix:{folder}/packets", f"unix:{folder}/grpc"
            target = ["--grpc-server-addr", self.address, "--dp-grpc-server-addr", packets, *options]
            self._process = subprocess.Popen(
                ["simple_switch_grpc", *general, "--", *target], stdout=self._log, stderr=subprocess.STDOUT
            )
            self._cleanup.callback(self._stop)
            self.control = P4Runtime(self.address, self.device, p4info, program, self.alive)
            self._cleanup.callback(self.control.close)
            self._channel = self._cleanup.enter_context(open_channel(packets))
            self._call = self._channel.stream_stream(_METHOD, lambda raw: raw, lambda raw: raw)
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def _wait_ready(self) -> None:
        """Wait for the data plane, which starts a little after P4Runtime and says so until then."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                for _ in self._call(iter(()), timeout=_TIMEOUT):
                    pass
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
                self.alive()
                time.sleep(0.02)

    def process(
        self, frames: Sequence[tuple[int, bytes]], timeout: float = _TIMEOUT
    ) -> list[list[tuple[int, bytes]]]:
        """Let frames come in as (port, frame), one right after the other.

        Returns for each one the frames that left because of it, (port, frame), in order.

        Raises:
            Bmv2DiedError: BMv2 ended.
            grpc.RpcError: after this many seconds it still holds a packet.
        """
        left: list[list[tuple[int, bytes]]] = [[] for _ in frames]
        requests = (self._request(number, port, frame) for number, (port, frame) in enumerate(frames))
        try:
            for answer in self._call(requests, timeout=timeout):
                number, port, frame = _response(answer)
                left[number].append((port, frame))
        except grpc.RpcError:
            self.alive(_LAST_WORDS)
            raise
        return left

    def _request(self, number: int, port: int, frame: bytes) -> bytes:
        # BMv2 never forgets which id a packet had, but it counts packets on: ids may come again.
        head = b"\x08" + varint(number + 1) + b"\x10" + varint(self.device) + b"\x18" + varint(port)
        return head + b"\x22" + varint(len(frame)) + frame

    def alive(self, timeout: float = 0.0) -> None:
        """Raise with BMv2's last words when it has died, or does within this many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(timeout)
            self._log.seek(0)
            raise Bmv2DiedError(f"simple_switch_grpc exited with {status}: {self._log.read()[-2000:]}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Stop the switch."""
        self._cleanup.close()

    def __enter__(self) -> "Bmv2Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _response(raw: bytes) -> tuple[int, int, bytes]:
    """Return which frame caused it (0 for the first), egress port and frame of a PacketStreamResponse."""
    fields = dict(_fields(raw))
    if 1 not in fields:
        raise RuntimeError("BMv2 sent a frame that nothing caused")
    return fields[1] - 1, fields.get(3, 0), fields.get(4, b"")


def _fields(raw: bytes) -> Iterable[tuple[int, Any]]:
    """Yield number and value of each field of a Protobuf message with varints and byte strings."""
    rest = iter(raw)
    for tag in rest:
        value = _unvarint(rest)
        yield tag >> 3, bytes(next(rest) for _ in range(value)) if tag & 7 == 2 else value


def _unvarint(rest: Iterator[int]) -> int:
    value = shift = 0
    for byte in rest:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value
