# SPDX-License-Identifier: Apache-2.0
"""The device config as controllers send it: JSON, or in the message that PI wanted around it until 2019."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.p4rt.device_config import program_json
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.p4rt.p4rt_client import CONTROL, Controller

PROGRAM = CONTROL.read_bytes()
COMMIT = p4rt.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
RECONCILE = p4rt.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT
REASSIGN = b"\x08\x01"
EXTRAS = b"\x12\x0d\x0a\x0b\x0a\x04port\x12\x0390 "  # {"port": "90 "}: options of PI's targets
UNKNOWN = b"\x22\x02hi"


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def data(program: bytes) -> bytes:
    return b"\x1a" + varint(len(program)) + program


_TAKEN: dict[str, bytes] = {
    "plain": PROGRAM,
    "after white space": b"\r\n\t " + PROGRAM,
    "after a byte order mark": b"\xef\xbb\xbf" + PROGRAM,
    "in UTF-16": PROGRAM.decode().encode("utf-16"),
    "wrapped": REASSIGN + data(PROGRAM),
    "wrapped, nothing else": data(PROGRAM),
    "wrapped with options": REASSIGN + EXTRAS + data(PROGRAM),
    "wrapped in another order": data(PROGRAM) + EXTRAS + REASSIGN,
    "wrapped by something newer": data(PROGRAM) + UNKNOWN,
}
_REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "wrapped and empty": (REASSIGN, "without device_data"),
    "wrapped junk": (data(b"junk"), "not JSON"),
    "wrapped twice": (data(data(PROGRAM)), "not JSON"),
    "a wrapper cut short": (data(PROGRAM)[:-1], "neither"),
    "no JSON": (b"not a program", "neither"),
    "JSON cut short": (PROGRAM[:-9], "not JSON"),
    "P4Info in its place": (b'pkg_info {\n  arch: "v1model"\n}\n', "neither"),
}


@pytest.mark.parametrize("config", _TAKEN.values(), ids=_TAKEN)
def test_it_is_taken_and_read_back_as_it_was_sent(empty: Controller, config: bytes) -> None:
    empty.set_config(COMMIT, config)
    empty.learn()
    empty.write("INSERT", table_entry=empty.station(1))
    request = p4rt.GetForwardingPipelineConfigRequest(device_id=1)
    assert empty.session.stub.GetForwardingPipelineConfig(request).config.p4_device_config == config


@pytest.mark.parametrize(("config", "words"), _REFUSED.values(), ids=_REFUSED)
def test_what_it_is_not_is_refused_in_words(empty: Controller, config: bytes, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        empty.set_config(COMMIT, config)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.details()


def test_a_wrapper_makes_no_other_program(empty: Controller) -> None:
    """Reconciling keeps counters for the same program only."""
    empty.set_config(COMMIT, PROGRAM)
    empty.learn()
    counter = p4rt.CounterEntry(counter_id=empty.names.id("counters", "frames"))
    counter.index.index = 3
    counted = p4rt.CounterEntry()
    counted.CopyFrom(counter)
    counted.data.packet_count = 5
    empty.write("MODIFY", counter_entry=counted)
    for config in (data(PROGRAM), PROGRAM):
        empty.set_config(RECONCILE, config)
        [found] = empty.read(counter_entry=counter)
        assert found.data.packet_count == 5


_ANYTHING: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda start, cut: (start + data(b'{"a": 1}'))[cut:], st.binary(max_size=9), st.integers(-9, 9)
    ),
)


@given(_ANYTHING)
def test_whatever_comes_is_a_program_or_is_refused(config: bytes) -> None:
    try:
        found = program_json(config)
    except ControlError as error:
        assert error.code is Code.INVALID_ARGUMENT
        assert "p4_device_config" in error.message
    else:
        assert found
        assert found in config
