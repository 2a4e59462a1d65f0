# SPDX-License-Identifier: Apache-2.0
"""Registers that share records: which ones, and that nobody sees it."""

from collections.abc import Iterator

import pytest

from softp4.codegen.records import records
from softp4.switch import Switch
from tests.programs import one, pack, program, unpack

SHARED = ("In.packets", "In.bytes", "In.longest")
WIDTHS = (8, 16, 32, 48, 8)


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("records")) as switch:
        yield switch


def test_registers_used_at_one_index_share_a_record() -> None:
    """Not one of another size, nor one that another action uses."""
    (record,) = set(records(program("records")).values())
    assert {each.name for each in record.registers} == set(SHARED)


def test_registers_that_no_action_uses_together_do_not() -> None:
    assert not records(program("state"))


def test_what_the_data_plane_writes_is_what_the_control_plane_reads(switch: Switch) -> None:
    for flow, lengths in {0: (60, 3), 1: (7,), 255: (1, 2, 4)}.items():
        for count, length in enumerate(lengths, 1):
            answer = one(switch, pack([(flow, 8), (length, 16), (0, 32), (0, 48), (0, 8)]))
            assert unpack(answer, WIDTHS)[2:4] == [count, sum(lengths[:count])]
        cells = [switch.register(name).read(flow) for name in SHARED]
        assert cells == [len(lengths), sum(lengths), 63 if flow == 0 else 7]
    assert [switch.register(name).read(2) for name in SHARED] == [0, 0, 0]


def test_what_the_control_plane_writes_is_what_the_data_plane_reads(switch: Switch) -> None:
    for value, name in enumerate(SHARED, 100):
        switch.register(name).write(9, value)
    answer = one(switch, pack([(9, 8), (1, 16), (0, 32), (0, 48), (0, 8)]))
    assert unpack(answer, WIDTHS)[2:] == [101, 102, 103]


def test_cells_of_a_record_do_not_overlap(switch: Switch) -> None:
    cells = [(name, cell) for name in SHARED for cell in (0, 1, 2, 255)]
    for value, (name, cell) in enumerate(cells, 0xF1):
        switch.register(name).write(cell, value)
    for value, (name, cell) in enumerate(cells, 0xF1):
        assert switch.register(name).read(cell) == value
