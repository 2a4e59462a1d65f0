# SPDX-License-Identifier: Apache-2.0
"""Registers of Weir's program that share records on the soft switch: which ones, and that nobody sees it."""

from collections.abc import Iterator

import pytest

from softp4.codegen.records import records
from softp4.program.loader import load_program
from softp4.switch import Switch
from weir.bench.switch import native
from weir.bench.switch.rate import JOB, admit
from weir.p4src import PROGRAM

WORKERS, SLOTS, LANES = 3, 5, 32
CELL_STATE = {
    f"WeirIngress.slots.{name}"
    for name in ("owners", "rounds", "seens", "includeds", "aboves", "counts", "marks", "checks")
}
FAR_AHEAD = {f"WeirIngress.slots.far_{name}" for name in ("rounds", "senders")}


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(PROGRAM) as switch:
        admit(switch, WORKERS, SLOTS)
        yield switch


def test_registers_used_at_one_index_share_a_record() -> None:
    found = records(load_program(PROGRAM))
    # Not lanes, which loops go over, nor what has other sizes.
    assert {frozenset(each.name for each in record.registers) for record in found.values()} == {
        frozenset(CELL_STATE),
        frozenset(FAR_AHEAD),
    }


def test_what_the_data_plane_writes_is_what_the_control_plane_reads(switch: Switch) -> None:
    load = native.contributions(JOB, WORKERS, LANES)
    native.in_memory(switch, load, SLOTS, 1, 4)  # rounds 1 to 3
    for slot in range(SLOTS):
        even, odd = 2 * slot, 2 * slot + 1
        assert [switch.register("WeirIngress.slots.rounds").read(cell) for cell in (even, odd)] == [2, 3]
        for cell in (even, odd):
            assert switch.register("WeirIngress.slots.owners").read(cell) == JOB
            assert switch.register("WeirIngress.slots.seens").read(cell) == 0b111
            assert switch.register("WeirIngress.slots.counts").read(cell) == WORKERS
            assert switch.register("WeirIngress.slots.aboves").read(cell) == 0
    assert switch.register("WeirIngress.slots.owners").read(2 * SLOTS) == 0
