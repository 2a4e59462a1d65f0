# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of one host share: a vector of each, their reduction, and how far each of them is.

An anonymous file, which one rank makes and hands to the others by its descriptor: it has no name that could
be left behind, and goes with the last of them. The loops over lanes and the waits are native (host_memory.c).
"""

import fcntl
import mmap
import os
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint64, c_void_p
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport import bindings
from weir.host_agent.transport.arrays import address_of
from weir.host_agent.transport.links import SLICE_S, TransportTimeout
from weir.host_agent.transport.report import Account
from weir.host_agent.transport.service_class import NO_ACCOUNT
from weir.host_agent.transport.slot_transport import BLOCKS, Lanes
from weir.wire.definition import Op

MOST_RANKS: Final = 254
RESULT: Final = 255
"""A block is taken from the reduction."""
NOT_WANTED: Final = 254
"""A block is not taken at all."""

MOST_ACCOUNTS: Final = NO_ACCOUNT - 1
"""Budgets of one rank that there is room for."""

_LEAST_LANES: Final = 1 << 14
_LINE: Final = 16  # words of a cache line; each rank writes to its own
_FACTS: Final = slice(4, 10)
_EXTRAS: Final = slice(10, 13)

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


class Step(IntEnum):
    """Steps of a reduction that a rank has made; each the word of its line that says so.

    ARRIVED: its vector is there. SUMMED: so is its share of the reduction. DONE: it needs nothing any more.
    ALIVE: counts as long as the process runs.
    """

    ARRIVED = 0
    SUMMED = 1
    DONE = 2
    ALIVE = 3


class HostMemory:
    """One rank's view of the memory. For one thread at a time, but for ``beat``.

    Args:
        fd: from ``create``, or what came of it by way of another process; owned from now on.
        place: this rank's, from 0, among those of the host. The first is the leader.
        size: how many they are.
    """

    def __init__(self, fd: int, place: int, size: int) -> None:
        self.place, self.size = place, size
        self.number = 0
        self._fd = fd
        self._lib = bindings.library()
        self._words = np.frombuffer(mmap.mmap(fd, _control_bytes(size)), np.uint32)[: _LINE * (2 + size)]
        self._capacity = 0
        self._areas: list[Words] = []
        self._nonzero: list[Bytes] = []
        self.magnitudes: list[Bytes] = []
        """By rank: the magnitude class of each block."""
        self.accounts: list[npt.NDArray[np.uint16]] = []
        """By rank: the account of each block."""
        self.budgets: list[npt.NDArray[np.uint64]] = []
        """By rank: how many lanes of each account may go missing."""
        self.result: Words = np.empty(0, np.uint32)
        self.returned: Words = np.empty(0, np.uint32)
        """Blocks that no result included, as the leader writes them."""
        self._grow(_LEAST_LANES)

    @staticmethod
    def create(size: int) -> int:
        """Return the descriptor of new memory for this many ranks."""
        if not 1 <= size <= MOST_RANKS:
            raise ValueError(f"{size} ranks of one host: there may be 1 to {MOST_RANKS}")
        fd = os.memfd_create("weir-host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _control_bytes(size))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # nobody's pages vanish under the others
        return fd

    def close(self) -> None:
        """Close the descriptor. The memory goes when nothing refers to it any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ---- how far the ranks are

    def next_reduction(self, lanes: int, *, quiet: bool, deadline: Callable[[Sequence[int]], None]) -> None:
        """Begin the next reduction, of this many lanes; every rank begins the same one.

        quiet: wait until nobody reads anything of the last one. deadline: see ``wait``.
        """
        grows = lanes > self._capacity
        if grows or quiet:
            self.wait(Step.DONE, range(self.size), deadline)
        self.number = (self.number + 1) & 0xFFFFFFFF
        if grows:
            self._grow(lanes)

    def tell(self, step: Step) -> None:
        """Say that this rank has done so."""
        self._set(self._line(self.place) + step, self.number)

    def beat(self) -> None:
        """Say that this rank's process runs; from any thread."""
        self._words[self._line(self.place) + Step.ALIVE] += 1

    def beats(self, place: int) -> int:
        """Return what says by changing that a rank's process runs."""
        return int(self._words[self._line(place) + Step.ALIVE])

    def release(self, verdict: int, returned: npt.NDArray[np.uint32] | None = None) -> None:
        """Let the others take the reduction; for the leader.

        verdict: a number for them. returned: the blocks that no result included.
        """
        count = 0 if returned is None else returned.size
        if returned is not None:
            self.returned[:count] = returned
        self._words[_LINE + 1 : _LINE + 3] = verdict, count
        self._set(_LINE, self.number)

    def released(self, deadline: Callable[[Sequence[int]], None]) -> tuple[int, npt.NDArray[np.uint32]]:
        """Wait until the leader lets this rank take the reduction; return what it says: see ``release``."""
        self._wait(_LINE, 1, lambda: deadline([0]))
        verdict, count = self._words[_LINE + 1 : _LINE + 3].tolist()
        return verdict, self.returned[:count].copy()

    def wait(self, step: Step, places: Sequence[int], deadline: Callable[[Sequence[int]], None]) -> None:
        """Wait until these ranks, which follow each other, have done so.

        deadline: called now and then with those that have not; ends the wait by an exception.
        """
        self._wait(
            self._line(places[0]) + step, len(places), lambda: deadline(self.missing(step, places)), _LINE
        )

    def missing(self, step: Step, places: Sequence[int]) -> list[int]:
        """Return those of the ranks that have not done so."""
        words = [int(self._words[self._line(place) + step]) for place in places]
        behind = [(word - self.number) & 0x80000000 for word in words]
        return [place for place, late in zip(places, behind, strict=True) if late]

    def _line(self, place: int) -> int:
        return (2 + place) * _LINE

    def _address(self, word: int) -> int:
        return address_of(self._words) + 4 * word

    def _set(self, word: int, value: int) -> None:
        self._lib.weir_host_tell(self._address(0), self._address(word), value)

    def _wait(self, word: int, count: int, deadline: Callable[[], None], stride: int = _LINE) -> None:
        while not self._lib.weir_host_wait(
            self._address(0), self._address(word), stride, count, self.number, round(SLICE_S * 1e9)
        ):
            deadline()

    # ---- what a rank says of its vector

    def say(self, facts: Sequence[int], extras: Sequence[int]) -> None:
        """Write down what must be the same on all ranks, and what need not be; before ARRIVED."""
        line = self._line(self.place)
        for words, values in ((_FACTS, facts), (_EXTRAS, extras)):
            self._words[line + words.start : line + words.start + len(values)] = values

    def agree(self) -> bool:
        """Return whether all ranks, which have arrived, said the same facts."""
        lines = self._words[2 * _LINE :].reshape(self.size, _LINE)[:, _FACTS]
        return bool((lines == lines[0]).all())

    def extras(self, place: int) -> list[int]:
        """Return what else a rank that has arrived said."""
        line = self._line(place)
        return [int(word) for word in self._words[line + _EXTRAS.start : line + _EXTRAS.stop]]

    # ---- vectors

    def put(self, lanes: Lanes, block: int) -> Account:
        """Copy this rank's vector into its area; return the account of its blocks that are not zero."""
        total = c_uint64()
        entered = self._lib.weir_host_put(
            address_of(lanes),
            lanes.size,
            block,
            address_of(self._areas[self.place]),
            address_of(self._nonzero[self.place]),
            byref(total),
        )
        return Account(entered, _signed(total))

    def reduce_share(self, op: Op, count: int, block: int, places: int, place: int) -> None:
        """Reduce a share of all ranks' vectors: the ``place``-th of ``places`` equal ones."""
        blocks = -(-count // block)
        self._lib.weir_host_reduce(
            *self._pointers(),
            self.size,
            op,
            count,
            block,
            blocks * place // places,
            blocks * (place + 1) // places,
            address_of(self.result),
        )

    def take(self, lanes: Lanes, block: int, sources: Bytes | None) -> Account:
        """Overwrite a vector by the reduction; return the account of what was written.

        sources: for each block RESULT, NOT_WANTED, or the place of the rank whose lanes are the result.
        """
        total = c_uint64()
        written = self._lib.weir_host_take(
            address_of(self.result),
            *self._pointers(),
            None if sources is None else address_of(sources),
            lanes.size,
            block,
            address_of(lanes),
            byref(total),
        )
        return Account(written, _signed(total))

    def included(self, count: int, block: int, lost: Bytes | None) -> Account:
        """Return the account of this rank's lanes that are not in a lost block."""
        total = c_uint64()
        lanes = self._lib.weir_host_included(
            address_of(self._areas[self.place]),
            address_of(self._nonzero[self.place]),
            None if lost is None else address_of(lost),
            count,
            block,
            byref(total),
        )
        return Account(lanes, _signed(total))

    def own(self, blocks: npt.NDArray[np.uint32], count: int, block: int) -> npt.NDArray[np.uint32]:
        """Return this rank's lanes of some blocks that are not zero, a row each; zeros beyond the end."""
        found = np.zeros((blocks.size, block), np.uint32)
        area = self._areas[self.place]
        for row, start in zip(found, blocks.astype(np.int64) * block, strict=True):
            lanes = area[start : min(start + block, count)]
            row[: lanes.size] = lanes
        return found

    def nonzero(self, place: int, blocks: int) -> npt.NDArray[np.bool_]:
        """Return which blocks of a rank's vector are not zero."""
        return np.asarray(self._nonzero[place][:blocks] != 0)

    def _pointers(self) -> tuple[Any, Any]:
        kind = c_void_p * self.size
        return (
            kind(*(address_of(area) for area in self._areas)),
            kind(*(address_of(flags) for flags in self._nonzero)),
        )

    def _grow(self, lanes: int) -> None:
        """Make room for vectors of this many lanes. The file gets longer; what is not used takes no "
        "memory."""
        capacity = 1 << (lanes - 1).bit_length()
        blocks = capacity // BLOCKS[0]
        own = [(capacity, np.uint32), (blocks, np.uint8), (blocks, np.uint8), (blocks, np.uint16)]
        shapes = [
            *[*own, (MOST_ACCOUNTS, np.uint64)] * self.size,
            (capacity, np.uint32),
            (blocks, np.uint32),
        ]
        offsets, end = [], _control_bytes(self.size)
        for count, dtype in shapes:
            offsets.append(end)
            end += _pages(count * np.dtype(dtype).itemsize)
        try:
            os.posix_fallocate(self._fd, end - 1, 1)  # longer, never shorter
            memory = mmap.mmap(self._fd, end)
        except OSError as error:
            raise OSError(
                error.errno,
                f"the {self.size} ranks of this host cannot share {end >> 20} MiB of memory for {lanes} "
                f"lanes each: {error.strerror}. Give their processes more memory, or set WEIR_LOCAL=off",
            ) from error
        views: list[Any] = [
            np.frombuffer(memory, dtype, count, offset)
            for (count, dtype), offset in zip(shapes, offsets, strict=True)
        ]
        self._areas, self._nonzero, self.magnitudes, self.accounts, self.budgets = (
            views[kind : 5 * self.size : 5] for kind in range(5)
        )
        self.result, self.returned = views[-2:]
        self._capacity = capacity


Watch = Callable[[Sequence[int], float], None]


class Deadline:
    """The end of a wait for other ranks: when it was interrupted, or has lasted too long.

    Args:
        limit_s: how long it may last; None: for ever.
        watch: told who is waited for, and how many seconds so far; raises when it is over for another reason.
        ranks: by place.
    """

    def __init__(self, limit_s: float | None, watch: Watch, ranks: Sequence[int]) -> None:
        self._began, self._limit_s = time.monotonic(), limit_s
        self._watch, self._ranks = watch, ranks

    def __call__(self, missing: Sequence[int]) -> None:
        """Raise TransportTimeout, which names the missing, or what ``watch`` raises; or return."""
        ranks, waited = [self._ranks[place] for place in missing], time.monotonic() - self._began
        self._watch(ranks, waited)
        if self._limit_s is not None and ranks and waited >= self._limit_s:
            names = ", ".join(f"rank {rank}" for rank in ranks)
            raise TransportTimeout(
                f"on this host {names} did not begin the same operation within {self._limit_s:g} s: "
                "look for a process that hangs, or calls something else"
            )


def _control_bytes(size: int) -> int:
    return _pages(4 * _LINE * (2 + size))


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _signed(total: c_uint64) -> int:
    value = total.value
    return value - (1 << 64) if value >> 63 else value
