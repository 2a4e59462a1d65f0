# SPDX-License-Identifier: Apache-2.0
"""Lookups in large tables: a router and an access list beside BMv2's, and the time by a table's size."""

import ctypes
import functools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from softp4.bench import bmv2_files
from softp4.bench.contenders import take_turns
from softp4.bench.rules import PORTS, Packet, filtered, filters, flows, routed, routes, strangers
from softp4.native import INCLUDE, Signatures, load_library
from softp4.native.scratch import scratch_folder
from softp4.runtime.compiler import RUNTIME
from softp4.state.entry import Entry
from softp4.switch import Switch

P4: Final = Path(__file__).resolve().parent / "p4"
LENGTH: Final = 64  # bytes of a frame
FRAMES: Final = 8192  # different ones, for the soft switch
SIGNATURES: Final[Signatures] = {
    "bench_frames": (
        ctypes.c_uint64,
        (ctypes.c_void_p, ctypes.c_char_p, *(ctypes.c_uint32,) * 3, ctypes.POINTER(ctypes.c_uint64)),
    ),
}


@dataclass(frozen=True)
class Lookups:
    """A program with one table, what is in it, and the packets that meet it."""

    name: str
    program: Path
    table: str
    entries: Callable[[int, int], list[Entry]]
    packets: Callable[[Sequence[Entry], int, int], list[Packet]]


def _flow_entries(count: int, seed: int) -> list[Entry]:
    return flows(strangers(count, seed))


def _flow_packets(entries: Sequence[Entry], count: int, seed: int) -> list[Packet]:
    known = strangers(len(entries), seed - 1)
    return (known * (count // len(known) + 1))[:count]


ROUTER: Final = Lookups("IPv4 routes (LPM)", P4 / "router.json", "In.routes", routes, routed)
ACL: Final = Lookups("ACL (ternary, ranges)", P4 / "acl.json", "In.acl", filters, filtered)
FLOWS: Final = Lookups("flows (exact)", P4 / "flows.json", "In.flows", _flow_entries, _flow_packets)


@dataclass(frozen=True)
class LookupTime:
    """Nanoseconds a frame through the soft switch, and microseconds to insert an entry."""

    case: str
    entries: int
    frame: float
    insert: float


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the compiled loop over frames."""
    source = Path(__file__).resolve().parent / "csrc" / "frames.c"
    return load_library("switch-bench", [source], include=(INCLUDE, RUNTIME), signatures=SIGNATURES)


def frame_time(switch: Switch, frames: bytes, length: int, passes: int) -> tuple[float, int]:
    """Return nanoseconds a frame, and how many left, when frames of one length are handed over ``passes``
    times.
    """
    count, sent = len(frames) // length, ctypes.c_uint64()
    nanoseconds: int = _library().bench_frames(
        switch.handle, frames, length, count, passes, ctypes.byref(sent)
    )
    return nanoseconds / (count * passes), sent.value


def measure(case: Lookups, size: int, passes: int) -> LookupTime:
    """Return one table of this many entries; the fastest pass, for another process takes time and cache."""
    entries = case.entries(size, 1)
    with Switch(case.program) as switch:
        start = time.perf_counter()
        for entry in entries:
            switch.table(case.table).insert(entry)
        insert = time.perf_counter() - start
        data = b"".join(packet.frame(LENGTH) for packet in case.packets(entries, FRAMES, 2))
        times = [frame_time(switch, data, LENGTH, 1)[0] for _ in range(passes)]
    return LookupTime(case.name, size, min(times), 1e6 * insert / size)


def compare(case: Lookups, size: int, bmv2_frames: int, repeats: int) -> dict[str, list[float]]:
    """Return packets per second of both; they alternate."""
    entries = case.entries(size, 1)
    frames = [packet.frame(LENGTH) for packet in case.packets(entries, max(bmv2_frames, FRAMES), 2)]
    data = b"".join(frames[:FRAMES])
    with Switch(case.program) as switch, scratch_folder("softp4-bench") as folder:
        for entry in entries:
            switch.table(case.table).insert(entry)

        def soft() -> float:
            took, left = frame_time(switch, data, LENGTH, 20)
            if left == 0:
                raise RuntimeError(f"{case.name}: nothing leaves the soft switch")
            return 1e9 / took

        contenders: dict[str, Callable[[], float]] = {"soft switch": soft}
        if shutil.which("simple_switch"):
            program = bmv2_files.with_entries(case.program, case.table, entries)
            contenders["BMv2"] = partial(bmv2_files.rate, program, frames[:bmv2_frames], PORTS, folder)
        return take_turns(contenders, repeats)
