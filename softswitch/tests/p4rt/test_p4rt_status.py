# SPDX-License-Identifier: Apache-2.0
"""The errors of a batch of any size reach a client that takes what gRPC's clients take by default."""

import socket
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.device import Device
from softp4.errors import ControlError
from softp4.p4rt import server
from softp4.p4rt.status import batch_status
from softp4.p4runtime.codes import Code
from softp4.p4runtime.errors import details
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.p4runtime.schema import status_pb2
from tests.p4rt.p4rt_client import Controller
from tests.p4rt.p4rt_stream import Connection, arbitration


def deletions(switch: Controller, count: int, first: int = 1) -> Any:
    """Return a WriteRequest that deletes entries which are not there."""
    request = p4rt.WriteRequest(device_id=1, election_id=p4rt.Uint128(low=9))
    for station in range(first, first + count):
        entry = p4rt.Entity(table_entry=switch.station(station))
        request.updates.add(type=p4rt.Update.DELETE, entity=entry)
    return request


def refusal(switch: Controller, address: str, request: Any) -> grpc.RpcError:
    """Return how a client without any option of its own hears that a write is refused."""
    with Connection(address) as client:
        stream = client.stream(arbitration(9))
        assert stream.status() == ("OK", 9)
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.Write(request)
    return caught.value


@pytest.mark.parametrize("count", [1, 60, 256, 300, 5000])
def test_a_batch_that_fails_altogether(switch: Controller, device: Device, count: int) -> None:
    assert device.address is not None
    error = refusal(switch, device.address, deletions(switch, count))
    found = details(error)
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert error.details().startswith(f"Write: {count} of {count} failed")
    assert len(found) == min(count, len(found)) >= min(count, 256)
    assert {each.canonical_code for each in found} == {Code.NOT_FOUND}
    if count > 60:
        assert "first, update 0: NOT_FOUND: " in error.details()
        assert f"the codes of the first {len(found)} updates" in error.details()
    else:
        assert all(each.message for each in found)


def test_a_single_failure_far_behind(switch: Controller, device: Device) -> None:
    assert device.address is not None
    request = deletions(switch, 1)
    there = p4rt.Entity(table_entry=switch.station(10))
    good = [
        p4rt.Update(type=p4rt.Update.INSERT, entity=there),
        p4rt.Update(type=p4rt.Update.DELETE, entity=there),
    ]
    request.updates.MergeFrom([*good * 1500, request.updates.pop()])
    error = refusal(switch, device.address, request)
    assert error.details().startswith("Write: 1 of 3001 failed; first, update 3000: NOT_FOUND: ")


@given(
    st.lists(
        st.one_of(st.none(), st.builds(ControlError, st.sampled_from(list(Code)[1:]), st.text(max_size=700))),
        min_size=1,
        max_size=400,
    ).filter(any),
    st.integers(1, 20),
)
def test_any_batch_fits_and_its_codes_are_in_their_places(
    results: list[ControlError | None], times: int
) -> None:
    results = results * times
    status = batch_status("Write", results)
    sent = status_pb2.Status.FromString(status.trailing_metadata[0][1])
    assert len(quote(status.details)) + 4 * len(status.trailing_metadata[0][1]) / 3 < 7600
    assert sent.message == status.details
    for detail, result in zip(sent.details, results, strict=False):
        error = p4rt.Error()
        assert detail.Unpack(error)
        assert error.canonical_code == (Code.OK if result is None else result.code)
    if len(sent.details) < len(results):
        assert len(sent.details) > 200 or len(quote(status.details)) > 1000


def test_a_connection_that_says_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_MS", 1000)
    with Device() as device:
        host, _, port = device.serve("127.0.0.1:0").rpartition(":")
        with socket.create_connection((host, int(port)), 30) as silent:
            while silent.recv(1 << 16):
                pass
