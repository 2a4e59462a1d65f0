# SPDX-License-Identifier: Apache-2.0
"""``weir bench p4runtime``: table entries written to, and read from, the soft switch and BMv2 over P4Runtime.

Both run the same program, each in a process of its own, and take turns; one client drives both. Requests are
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
from statistics import median
from typing import Any, Final

from google.protobuf import text_format
from rich.console import Console

from softp4.native.scratch import scratch_folder
from softp4.p4runtime.names import Names
from softp4.p4runtime.schema import p4info_pb2, p4runtime_pb2
from softp4.p4runtime.session import Session, SessionError
from weir.bench.ports import free_port
from weir.bench.table import show, spread
from weir.process.child import tied
from weir.report.words import factor

P4: Final = Path(__file__).resolve().parent / "p4"
SWITCHES: Final = ("soft switch", "BMv2")
WORK: Final = ("insert", "modify", "read", "delete", "insert one a call")
_PATIENCE: Final = 30.0  # seconds until a switch that does not start counts as broken
_ALONE: Final = 500  # updates that go one a call

console = Console(stderr=True)


@dataclass(frozen=True)
class Case:
    """A program, its table and the fields of the entry with a number: (match kind, value, prefix length)."""

    program: str
    table: str
    key: Callable[[int], Sequence[tuple[int, int | None]]]
    args: Callable[[int], Sequence[int]]


CASES: Final = {
    "routes, longest prefix": Case(
        "router", "routes", lambda n: [((n + 1) << 8, 24)], lambda port: (port, 0x020000000000 + port)
    ),
    "flows, exact five-tuple": Case(
        "flows",
        "flows",
        lambda n: [(field, None) for field in (0x0A000000 + n, 0x0A800000 + n, 6, 1 + n % 60000, 80)],
        lambda port: (port,),
    ),
}


def run(entries: int, batch: int, repeats: int) -> None:
    """Measure and print; BMv2 only when it is on PATH, said if not."""
    kinds = [kind for kind in SWITCHES if kind != "BMv2" or shutil.which("simple_switch_grpc")]
    notes = [] if "BMv2" in kinds else ["BMv2 not measured: simple_switch_grpc is not on PATH"]
    for name, case in CASES.items():
        rates: dict[tuple[str, str], list[float]] = {(kind, work): [] for kind in kinds for work in WORK}
        with contextlib.ExitStack() as stack:
            loads = {kind: Load(stack.enter_context(_switch(kind)), case, entries, batch) for kind in kinds}
            for repeat in range(repeats + 1):
                for kind, load in loads.items():
                    console.print(f"{name}: {kind}, repetition {repeat} of {repeats}", style="dim")
                    for work, rate in load.run(repeat).items():
                        if repeat:  # the first one warms up
                            rates[kind, work].append(rate)
        _print(name, rates, kinds, entries, batch, notes)


class Load:
    """One switch with the program of a case, and what is done to its table."""

    def __init__(self, session: Session, case: Case, entries: int, batch: int) -> None:
        self._session, self._case, self._entries, self._batch = session, case, entries, batch
        info = text_format.Parse((P4 / f"{case.program}.p4info.txtpb").read_text(), p4info_pb2.P4Info())
        session.push(info, (P4 / f"{case.program}.json").read_bytes())
        names = Names(info)
        self._table, self._action = names.id("tables", case.table), names.id("actions", "forward")

    def run(self, repeat: int) -> dict[str, float]:
        """Return entries a second for each kind of work. The table is empty before and after."""
        update = p4runtime_pb2.Update
        port = 1 + repeat % 60
        everything = p4runtime_pb2.Entity()
        everything.table_entry.table_id = self._table
        rates = {
            "insert": self._write(update.INSERT, self._entries, port, self._batch),
            "modify": self._write(update.MODIFY, self._entries, port + 1, self._batch),
        }
        start = time.perf_counter()
        found = sum(1 for _ in self._session.read(everything, timeout=_PATIENCE))
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
    with scratch_folder("bench") as folder:
        address = f"unix:{folder}/grpc"
        if kind == "BMv2":
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
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return Session(address)
        except SessionError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} does not serve: {error}") from None
            time.sleep(0.1)


def _print(
    name: str,
    rates: dict[tuple[str, str], list[float]],
    kinds: Sequence[str],
    entries: int,
    batch: int,
    notes: Sequence[str],
) -> None:
    rows = []
    for work in WORK:
        row = [work]
        for kind in kinds:
            row += [f"{median(rates[kind, work]):,.0f}", spread(rates[kind, work])]
        if len(kinds) > 1:
            row.append(factor(median(rates[kinds[0], work]) / median(rates[kinds[1], work])))
        rows.append(row)
    columns = ["entries/s", *(title for kind in kinds for title in (kind, "spread"))]
    if len(kinds) > 1:
        columns.append("ratio")
    show(f"P4Runtime: {name}; {entries:,} entries, {batch} in a Write", columns, rows, notes)
