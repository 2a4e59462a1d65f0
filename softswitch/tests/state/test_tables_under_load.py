# SPDX-License-Identifier: Apache-2.0
"""Tables that change while frames run at full speed: no frame sees half a change, none is lost."""

import ctypes
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from softp4 import native
from softp4.dataplane.ports import PortLoop
from softp4.native.build import load_library
from softp4.state.entry import Entry, Exact, Ternary
from softp4.switch import Switch
from tests.programs import pack, program

PORT = 3  # where the program sends its answers: back
MAC = 7
QUERY = pack([(8, 8), (MAC, 48), (0, 32), (0, 128), (0, 16), (0, 4), (0, 4)])
UPDATES = 3000
FILLERS = 200
FIELDS = 24  # of an entry, which must always belong together


class Result(ctypes.Structure):
    """flood_result of flood.c."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("answers", "missing", "torn", "apart")]


SIGNATURES: Final[native.Signatures] = {
    "ring_bell_open": (ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)),
    "ring_bell_close": (None, (ctypes.c_void_p,)),
    "ring_port_open": (ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)),
    "ring_port_close": (None, (ctypes.c_void_p,)),
    "flood": (None, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(Result))),
}


@pytest.fixture(scope="module")
def flood() -> Any:
    here, ring = Path(__file__).parents[1], Path(native.__file__).parent
    sources = [here / "flood.c", ring / "ring_api.c"]
    return load_library("flood", sources, include=[ring], signatures=SIGNATURES)


def left(version: int, mac: int = MAC) -> Entry:
    return Entry((Exact(mac),), "In.many", (version,) * FIELDS)


def right(version: int, mac: int = MAC, priority: int = 1) -> Entry:
    return Entry((Ternary(mac, mac),), "In.one", (version,), priority)


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("matching")) as made:
        made.table("In.left").insert(left(0))
        made.table("In.right").insert(right(0))
        yield made


def run(flood: Any, switch: Switch, folder: Path, change: Callable[[int], None]) -> Result:
    """Return what the frames saw while ``change`` was called with one version after the other."""
    stop, result = ctypes.c_int(), Result()
    with PortLoop() as loop:
        loop.add_shm(PORT, folder)
        loop.set_switch(switch)
        loop.start()
        bell = flood.ring_bell_open(bytes(folder / "bell"), 0)
        port = flood.ring_port_open(bytes(folder / f"port-{PORT}"), 0, bell)
        sender = threading.Thread(
            target=flood.flood, args=(port, QUERY, ctypes.byref(stop), ctypes.byref(result))
        )
        sender.start()
        try:
            for version in range(1, UPDATES + 1):
                change(version)
                if version % 100 == 0:
                    time.sleep(0.001)  # the sender needs a core, too
        finally:
            stop.value = 1
            sender.join()
            flood.ring_port_close(port)
            flood.ring_bell_close(bell)
    return result


def test_no_frame_sees_half_an_entry_and_none_is_lost(flood: Any, switch: Switch, tmp_path: Path) -> None:
    """Entries change and their tables are rebuilt around them."""
    rng = random.Random(5)
    present: dict[int, bool] = {}

    def change(version: int) -> None:
        switch.table("In.left").modify(left(version))
        mac = 8 + rng.randrange(FILLERS)
        if present.pop(mac, False):
            switch.table("In.left").delete((Exact(mac),))
        else:
            switch.table("In.left").insert(left(0, mac))
            present[mac] = True

    result = run(flood, switch, tmp_path, change)
    assert result.answers > 1000
    assert (result.torn, result.missing) == (0, 0)
    assert result.apart > 0, "the check does not see what changes"


def test_entries_of_two_tables_change_at_once(flood: Any, switch: Switch, tmp_path: Path) -> None:
    """While the switch is paused, also by way of other entries that win for a moment."""
    priorities = itertools.count(2)

    def change(version: int) -> None:
        with switch.paused():
            switch.table("In.left").modify(left(version))
            if version % 2:
                switch.table("In.right").modify(right(version))
            else:
                priority = next(priorities)
                switch.table("In.right").delete((Ternary(MAC, MAC),), 1)
                switch.table("In.right").insert(right(0, mac=3, priority=priority))
                switch.table("In.right").insert(right(version))
                switch.table("In.right").delete((Ternary(3, 3),), priority)

    result = run(flood, switch, tmp_path, change)
    assert result.answers > 1000
    assert (result.torn, result.apart, result.missing) == (0, 0, 0)
