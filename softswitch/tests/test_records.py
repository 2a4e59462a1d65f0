# SPDX-License-Identifier: Apache-2.0
"""Registers that share records: which ones, and that nobody sees it."""

from collections.abc import Iterator

import pytest

from softp4.codegen.records import records
from softp4.program.loader import load_program
from softp4.switch import Switch
from tests.programs import program
from weir.bench import native
from weir.bench.switch import JOB, admit
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


def test_registers_that_no_action_uses_together_do_not() -> None:
    assert not records(program("state"))


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


def test_cells_of_a_record_do_not_overlap(switch: Switch) -> None:
    sizes = {name: switch.program.registers[name].size for name in CELL_STATE}
    cells = [(name, cell) for name, size in sorted(sizes.items()) for cell in (0, 1, 2, size - 1)]
    for value, (name, cell) in enumerate(cells, 0xF001):
        switch.register(name).write(cell, value)
    for value, (name, cell) in enumerate(cells, 0xF001):
        assert switch.register(name).read(cell) == value
