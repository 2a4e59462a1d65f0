# SPDX-License-Identifier: Apache-2.0
"""P4Info as p4c writes it, before it optimises: tables that the program has lost, keys without a width."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format

from softp4.device import Device
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.errors import ProgramError
from tests.p4rt.p4rt_client import Controller, all_entries
from tests.programs import FOLDER, one, program

_INFO = FOLDER / "unreached.p4info.txtpb"
_TOO_SHORT = 1  # error.PacketTooShort


@pytest.fixture
def running(empty: Controller) -> Iterator[Controller]:
    empty.push(FOLDER / "unreached.json", _INFO)
    yield empty


def test_a_key_of_type_error_has_the_programs_width(running: Controller, device: Device) -> None:
    entry = running.entry("faults", {"fault": ("exact", _TOO_SHORT)}, "answer", {"code": 7})
    running.write("INSERT", table_entry=entry)
    assert all_entries(running, "faults") == [entry]
    pipeline = device._pipelines.running
    assert pipeline is not None
    assert one(pipeline.switch, b"abc") == b"\7abc"
    too_wide = running.entry("faults", {"fault": ("exact", 1 << 32)}, "answer", {"code": 7})
    code, message = running.refused("INSERT", table_entry=too_wide)
    assert (code, message) == (
        "INVALID_ARGUMENT",
        "table In.faults, field fault: 0x100000000 does not fit into bit<32>",
    )


def test_a_table_that_the_compiler_removed_takes_no_entries(running: Controller) -> None:
    entry = running.entry("unreached", {"hdr.request.value": ("exact", 1)}, "count")
    for kind in ("INSERT", "MODIFY", "DELETE"):
        code, message = running.refused(kind, table_entry=entry)
        assert code == "UNIMPLEMENTED" and "In.unreached is not in the program" in message
    code, _ = running.refused("MODIFY", direct_counter_entry=p4rt.DirectCounterEntry(table_entry=entry))
    assert code == "UNIMPLEMENTED"


def test_reads_of_everything_leave_it_out(running: Controller) -> None:
    entry = running.entry("faults", {"fault": ("exact", _TOO_SHORT)}, "answer", {"code": 7})
    running.write("INSERT", table_entry=entry)
    assert running.read(table_entry=p4rt.TableEntry()) == [entry]
    assert not running.read(direct_counter_entry=p4rt.DirectCounterEntry(table_entry=p4rt.TableEntry()))
    assert not running.read(direct_meter_entry=p4rt.DirectMeterEntry(table_entry=p4rt.TableEntry()))


def test_p4info_of_another_program_is_still_refused() -> None:
    info: Any = text_format.Parse(_INFO.read_text(), p4info_pb2.P4Info())
    [table] = [table for table in info.tables if table.preamble.alias == "faults"]
    table.preamble.name = "In.renamed"
    with pytest.raises(ProgramError, match=r"In\.renamed.* is in P4Info, but .* not have it, but In\.faults"):
        P4InfoIndex(info).check_against(program("unreached"))
