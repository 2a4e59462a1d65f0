# SPDX-License-Identifier: Apache-2.0
"""Table entries written to, and read from, the switch and BMv2 over P4Runtime.

Both run the same program, each in a process of its own, and alternate; one client drives both. Requests are
made before the clock starts; replies are parsed while it runs.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format

from softp4.bench.contenders import free_port, take_turns
from softp4.bench.tied import tied
from softp4.native.scratch import scratch_folder
from softp4.p4runtime.names import Names
from softp4.p4runtime.schema import p4info_pb2, p4runtime_pb2
from softp4.p4runtime.session import Session, SessionError

P4: Final = Path(__file__).resolve().parent / "p4"
BMV2: Final = "BMv2"
SWITCHES: Final = ("soft switch", BMV2)
WORK: Final = ("insert", "modify", "read", "delete", "insert one a call")
_TIMEOUT: Final = 30.0  # seconds until a switch that does not start counts as broken
_ALONE: Final = 500  # updates that go one a call


@dataclass(frozen=True)
class Program:
    """A program, its table and the fields of the entry with a number: (match kind, value, prefix length)."""

    program: str
    table: str
    key: Callable[[int], Sequence[tuple[int, int | None]]]
    args: Callable[[int], Sequence[int]]


PROGRAMS: Final = {
    "routes, longest prefix": Program(
        "router", "routes", lambda n: [((n + 1) << 8, 24)], lambda port: (port, 0x020000000000 + port)
    ),
    "flows, exact five-tuple": Program(
        "flows",
        "flows",
        lambda n: [(field, None) for field in (0x0A000000 + n, 0x0A800000 + n, 6, 1 + n % 60000, 80)],
        lambda port: (port,),
    ),
}


def contenders() -> list[str]:
    """Return the switches that this machine has, ours first."""
    return [kind for kind in SWITCHES if kind != BMV2 or shutil.which("simple_switch_grpc")]


def compare(case: Program, entries: int, batch: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    """Return entries a second of each switch, by the kind of work, in every repetition; they alternate."""
    with contextlib.ExitStack() as stack:
        loads = {
            kind: Load(stack.enter_context(_switch(kind)), case, entries, batch).run for kind in contenders()
        }
        return take_turns(loads, repeats)


class Load:
    """One switch with the program of a case, and what is done to its table."""

    def __init__(self, session: Session, case: Program, entries: int, batch: int) -> None:
        self._session, self._case, self._entries, self._batch = session, case, entries, batch
        self._runs = 0
        info = text_format.Parse((P4 / f"{case.program}.p4info.txtpb").read_text(), p4info_pb2.P4Info())
        session.push(info, (P4 / f"{case.program}.json").read_bytes())
        names = Names(info)
        self._table, self._action = names.id("tables", case.table), names.id("actions", "forward")

    def run(self) -> dict[str, float]:
        """Return entries a second for each kind of work. The table is empty before and after."""
        update = p4runtime_pb2.Update
        self._runs += 1
        port = 1 + self._runs % 60
        everything = p4runtime_pb2.Entity()
        everything.table_entry.table_id = self._table
        rates = {
            "insert": self._write(update.INSERT, self._entries, port, self._batch),
            "modify": self._write(update.MODIFY, self._entries, port + 1, self._batch),
        }
        start = time.perf_counter()
        found = sum(1 for _ in self._session.read(everything, timeout=_TIMEOUT))
        rates["read"] = found / (time.perf_counter() - start)
        assert found == self._entries, f"{found} entries of {self._entries} came back"
        rates["delete"] = self._write(update.DELETE, self._entries, port, self._batch)
        rates["insert one a call"] = self._write(update.INSERT, _ALONE, port, 1)
        self._write(update.DELETE, _ALONE, port, self._batch)
        return rates

    def _write(self, kind: int, entries: int, port: int, batch: int) -> float:
        updates = [self._update(kind, number, port) for number in range(entries)]
        requests = [
            self._session.claimed(p4runtime_pb2.WriteRequest(updates=updates[first : first + batch]))
            for first in range(0, entries, batch)
        ]
        start = time.perf_counter()
        for request in requests:
            self._session.call("Write", request)
        return entries / (time.perf_counter() - start)

    def _update(self, kind: int, number: int, port: int) -> Any:
        update = p4runtime_pb2.Update(type=kind)
        entry = update.entity.table_entry
        entry.table_id = self._table
        for field_id, (value, length) in enumerate(self._case.key(number), start=1):
            match = entry.match.add(field_id=field_id)
            if length is None:
                match.exact.value = _bytes(value)
            else:
                match.lpm.value, match.lpm.prefix_len = _bytes(value), length
        entry.action.action.action_id = self._action
        for param_id, argument in enumerate(self._case.args(port), start=1):
            entry.action.action.params.add(param_id=param_id, value=_bytes(argument))
        return update


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


@contextlib.contextmanager
def _switch(kind: str) -> Iterator[Session]:
    """Yield a session with a switch in a process of its own, without a program."""
    with scratch_folder("softp4-bench") as folder:
        address = f"unix:{folder}/grpc"
        if kind == BMV2:
            # Its Thrift port must be free; nobody speaks to it.
            options = ["--no-p4", "--device-id", "1", "--thrift-port", str(free_port())]
            command = ["simple_switch_grpc", *options, "--", "--grpc-server-addr", address]
        else:
            command = [sys.executable, "-m", "softp4", "run", "--grpc", address]
        process = subprocess.Popen(tied(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with _session(address, process) as session:
                yield session
        finally:
            process.kill()
            process.wait()


def _session(address: str, process: "subprocess.Popen[bytes]") -> Session:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            return Session(address)
        except SessionError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} does not serve: {error}") from None
            time.sleep(0.1)
