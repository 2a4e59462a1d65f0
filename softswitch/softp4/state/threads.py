# SPDX-License-Identifier: Apache-2.0
"""By what the threads of a switch share its frames, as long as its tables allow it."""

import functools
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from softp4.codegen.keys import unpack_args
from softp4.program.types import Program, Table
from softp4.runtime.bindings import ANY_THREAD, Key, NativeSwitch
from softp4.state.table_store import TableStore

if TYPE_CHECKING:
    from softp4.codegen.abstract_run import Facts
    from softp4.codegen.sharding import Sharder, Sharding

_QUIET: Final = 0.2  # seconds without changes before it is worth while to ask
_PAUSE: Final = 10  # times as long as the last answer took, before the next


class Threads:
    """Sees to it that threads share frames only while no entry lets two of them touch the same state.

    `share` derives from program and entries by what. A later entry that contradicts what that relied on ends
    it before it is in its table: one thread runs all frames then, until `share` is called again.

    Args:
        count: threads; with one, there is nothing to share.

    Attributes:
        by: what frames are shared by, as text; None while one thread runs them all.
        why_not: the reasons then.
    """

    def __init__(
        self, native: NativeSwitch, program: Program, tables: Mapping[str, TableStore], count: int
    ) -> None:
        self.count = count
        self._native = native
        self._program = program
        self._tables = tables
        self._facts: Facts | None = None  # that the key relies on
        self._changed = True  # since they were collected, in a way that matters
        self._touched = -_QUIET  # when that was, in seconds
        self._not_before = 0.0
        self._deriving = threading.Lock()
        self.by: str | None = None
        self.why_not: tuple[str, ...] = ("not derived yet",)
        if count > 1:
            for table in tables.values():
                table.watch = self._watch

    @property
    def due(self) -> bool:
        """Return whether `share` may come to another result, and entries have not just changed."""
        now = time.monotonic()
        return self.count > 1 and self._changed and now >= self._touched + _QUIET and now >= self._not_before

    def shares(self) -> list[int]:
        """Return the packets of each thread, of the first one also those that it ran alone."""
        return self._native.shares(self.count)

    def describe(self) -> str:
        """Return as text how many threads run frames, and by what they share them or why not."""
        if self.by is not None:
            return f"{self.count} threads share frames by {self.by}"
        return "\n  ".join(("one thread runs all frames:", *self.why_not))

    @functools.cached_property
    def _sharder(self) -> "Sharder":
        # Its import takes its time, and only several threads need it.
        from softp4.codegen.loose import loose_registers
        from softp4.codegen.sharding import Sharder

        return Sharder(self._program, loose_registers(self._program))

    def share(self) -> "Sharding":
        """Derive by what frames can be shared now, and let the threads, if there are several, do so.

        Takes a second, or some for a large program. Raises ValueError when the switch has been closed.
        """
        with self._deriving:
            began = time.monotonic()
            with self._native.control:
                facts = self._facts = self._collect()
                self._changed = False
            found = self._sharder.derive(facts)
            with self._native.control:
                if self._facts is facts and self.count > 1:
                    self._adopt(found)
            self._not_before = time.monotonic() + _PAUSE * (time.monotonic() - began)
            return found

    def _adopt(self, found: "Sharding") -> None:
        if found.reasons:
            self._stop(found.reasons)
            return
        key, self.by = _key(self._sharder, found)
        self.why_not = ()
        self._native.share(key)

    def _stop(self, why: tuple[str, ...]) -> None:
        self._facts = None
        self.by, self.why_not = None, why
        self._native.share(None)

    def _watch(self, table: Table, action: int, args: bytes) -> None:
        """Look at what an entry is about to do. The caller holds the control lock."""
        if self._facts is not None:
            if table.profile is not None:  # all that members can do was taken into account
                return
            values = unpack_args(self._program.actions[action], args)
            if self._facts.allow(table.name, action, values):
                return
            name = self._program.actions[action].name
            self._stop((f"{table.name}: {name} is new to it, or its arguments are",))
        self._changed = True
        self._touched = time.monotonic()

    def _collect(self) -> "Facts":
        from softp4.codegen import bits
        from softp4.codegen.abstract_run import Facts

        found: dict[str, dict[int, tuple[bits.Bits | None, ...]]] = {}
        for name in self._program.tables:
            calls = found.setdefault(name, {})
            for action, args in self._tables[name].calls():
                relevant = self._sharder.parameters.get(action, ())
                params = self._program.actions[action].params
                known = tuple(
                    bits.fitted(bits.constant(value), param.bits) if place in relevant and args else None
                    for place, (param, value) in enumerate(
                        zip(params, args or (0,) * len(params), strict=True)
                    )
                )
                before = calls.get(action, known)
                calls[action] = tuple(bits.either(*pair) for pair in zip(before, known, strict=True))
        return Facts(found)


def _key(sharder: "Sharder", found: "Sharding") -> tuple[Key, str]:
    """Return the field that has most of the key's bits, also as text."""
    if not found.key:
        return ANY_THREAD, "turns: none of them touches state"
    masks = [sum(1 << place for ref, place in found.key if ref == field) for field in sharder.fields]
    best = max(range(len(masks)), key=lambda field: masks[field].bit_count())
    field = sharder.fields[best]
    return Key(best, masks[best]), f"{field.header}.{field.field} & {masks[best]:#x}"
