# SPDX-License-Identifier: Apache-2.0
"""P4Info as the server takes it: types that differ from the data plane's, and P4Info that cannot be right."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from softp4.device import Device
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.program.errors import ProgramError
from tests.p4rt.p4rt_client import CONTROL_INFO, TIMEOUT, Controller
from tests.programs import FOLDER, program

TYPES = FOLDER / "types.json"
TYPES_INFO = FOLDER / "types.p4info.txtpb"
_PORT = 300  # needs the ninth bit


@pytest.fixture
def typed(empty: Controller) -> Controller:
    """Return a primary controller of a soft switch with the program `types`."""
    empty.push(TYPES, TYPES_INFO)
    return empty


def beast(controller: Controller, port: int, label: tuple[int, int] = (5, 0xFFFF)) -> Any:
    """Return an entry that passes a beast from a port on to the next, with another label."""
    match = {"port": ("exact", port), "label": ("ternary", *label), "kind": ("exact", 1)}
    args = {"port": port + 1, "label": 0x1234, "kind": 2}
    return controller.entry("beasts", match, "send", args, priority=1)


def register(controller: Controller, name: str) -> list[tuple[str, bytes]]:
    """Return all cells of a register: which kind of data, and the bytes."""
    info = controller.session.p4info()
    number = next(r.preamble.id for r in info.registers if r.preamble.alias == name)
    cells = controller.read(register_entry=p4rt.RegisterEntry(register_id=number))
    kinds = [cell.data.WhichOneof("data") for cell in cells]
    return [(kind, getattr(cell.data, kind)) for kind, cell in zip(kinds, cells, strict=True)]


def test_translated_ports_are_the_data_planes_numbers(typed: Controller, device: Device) -> None:
    entry = beast(typed, _PORT)
    typed.write("INSERT", table_entry=entry)
    assert typed.read(table_entry=typed.entry("beasts")) == [entry]
    device.loop.add_queue(_PORT + 1, "out")
    device.loop.add_queue(1, "in")
    device.loop.inject(1, _PORT.to_bytes(2, "big") + b"\0\5" + b"\1" + bytes(60))
    frame = device.loop.receive(_PORT + 1, TIMEOUT)
    assert frame is not None and frame[:5] == _PORT.to_bytes(2, "big") + b"\x12\x34" + b"\2"


@pytest.mark.parametrize("port", [512, 1 << 31])
def test_a_port_that_the_data_plane_cannot_have_is_refused(typed: Controller, port: int) -> None:
    assert typed.refused("INSERT", table_entry=beast(typed, port))[0] == "OUT_OF_RANGE"
    assert typed.read(table_entry=typed.entry("beasts")) == []


def test_registers_of_enums_and_new_types(typed: Controller) -> None:
    info = {r.preamble.alias: r.preamble.id for r in typed.session.p4info().registers}
    for name, data in (
        ("kinds", {"enum_value": b"\2"}),
        ("labels", {"bitstring": b"\x12\x34"}),
        ("ports", {"bitstring": b"\1\x2c"}),
    ):
        entry = p4rt.RegisterEntry(register_id=info[name], index={"index": 2}, data=data)
        typed.write("MODIFY", register_entry=entry)
        [(kind, value)] = data.items()
        assert register(typed, name) == [(kind, b"\0"), (kind, b"\0"), (kind, value), (kind, b"\0")]
    wrong = p4rt.RegisterEntry(register_id=info["kinds"], data={"bitstring": b"\2"})
    assert typed.refused("MODIFY", register_entry=wrong) == (
        "INVALID_ARGUMENT",
        "register In.kinds takes enum_value, not bitstring",
    )


def _double_id(info: Any) -> None:
    info.tables[1].preamble.id = info.tables[0].preamble.id


def _no_id(info: Any) -> None:
    info.counters[0].preamble.id = 0


def _double_field(info: Any) -> None:
    table = next(table for table in info.tables if len(table.match_fields) > 1)
    table.match_fields[1].id = table.match_fields[0].id


def _wider_key(info: Any) -> None:
    info.tables[0].match_fields[0].bitwidth += 1


def _narrower_parameter(info: Any) -> None:
    next(action for action in info.actions if action.params).params[0].bitwidth -= 1


def _counted(info: Any) -> None:
    table = next(table for table in info.tables if table.preamble.alias == "prefixes")
    info.direct_counters[0].direct_table_id = table.preamble.id


def _struct_register(info: Any) -> None:
    info.registers[0].type_spec.struct.name = "pair_t"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_double_id, "each needs a different id"),
        (_no_id, "each needs a different id"),
        (_double_field, "each needs a different id"),
        (_wider_key, "bits, not"),
        (_narrower_parameter, "bits, not"),
        (_counted, "prefixes is in P4Info, but it has no direct counter"),
        (_struct_register, "holds struct, not numbers"),
    ],
)
def test_p4info_that_cannot_be_right_is_refused(
    empty: Controller, spoil: Callable[[Any], None], message: str
) -> None:
    request = p4rt.SetForwardingPipelineConfigRequest(device_id=1, election_id=p4rt.Uint128(low=1))
    request.action = request.VERIFY
    text_format.Parse(CONTROL_INFO.read_text(), request.config.p4info)
    request.config.p4_device_config = (FOLDER / "control.json").read_bytes()
    empty.session.stub.SetForwardingPipelineConfig(request)
    spoil(request.config.p4info)
    with pytest.raises(grpc.RpcError, match=message) as refused:
        empty.session.stub.SetForwardingPipelineConfig(request)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def _types_info() -> Any:
    info = p4info_pb2.P4Info()
    text_format.Parse(TYPES_INFO.read_text(), info)
    return info


def test_types_translated_to_strings_are_refused() -> None:
    info = _types_info()
    info.type_info.new_types["port_t"].translated_type.sdn_string.SetInParent()
    with pytest.raises(ProgramError, match="port is translated to a string"):
        P4InfoIndex(info).check_against(program("types"))


def test_translated_controller_headers_are_refused() -> None:
    info = _types_info()
    header = info.controller_packet_metadata.add()
    header.preamble.id, header.preamble.name = 77, "packet_in"
    field = header.metadata.add(id=1, name="port", bitwidth=32)
    field.type_name.name = "port_t"
    with pytest.raises(ProgramError, match="port of controller header packet_in is translated"):
        P4InfoIndex(info).check_against(program("types"))
