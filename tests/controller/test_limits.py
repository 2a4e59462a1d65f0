# SPDX-License-Identifier: Apache-2.0
"""The fields of requests, which anybody may fill in as he likes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.agent_service.proto import agent_pb2
from weir.controller import limits
from weir.controller.jobs import JobError, Refusal
from weir.controller.limits import Junk, address_of, check_join, parsed, shortened

GOOD: dict[str, Any] = {
    "job": "digits",
    "token": "secret",
    "size": 4,
    "rank": 1,
    "host": "h1",
    "ip": "10.0.0.1",
}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"job": "y" * 10_000},
            "job 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...' has 10000 characters; the limit is 128",
        ),
        ({"job": "digits\n12:00:00 INFO all is well"}, "characters that cannot be printed"),
        ({"job": "digits\x1b[2J"}, "characters that cannot be printed"),
        ({"host": "h" * 64}, "is not a valid host name: use 1 to 63 letters"),
        ({"host": "h1 or so"}, "'h1 or so' is not a valid host name"),
        ({"ip": "1" * 46}, "has 46 characters; the limit is 45"),
        ({"token": "t" * 257}, "the token has 257 characters; the limit is 256"),
        ({"process": "p" * 65}, "has 65 characters; the limit is 64"),
        ({"ranks": range(4097)}, "4097 ranks in one worker: there may be 4096"),
        ({"timeout_s": math.nan}, "timeout_s nan"),
        ({"timeout_s": math.inf}, "timeout_s inf"),
        ({"timeout_s": -1.0}, "timeout_s -1"),
        ({"timeout_s": 86_401.0}, "waits 0 (the controller's own time) to 86400 seconds"),
    ],
)
def test_a_field_beyond_its_limit_is_named(asked: dict[str, Any], says: str) -> None:
    check_join(agent_pb2.JoinRequest(**GOOD))
    with pytest.raises(JobError) as caught:
        check_join(agent_pb2.JoinRequest(**{**GOOD, **asked}))
    assert caught.value.refusal is Refusal.INVALID
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_names_of_any_language_are_names() -> None:
    check_join(agent_pb2.JoinRequest(**{**GOOD, "job": "Prüfung 3: 数字 / mesh_dp-1a2b"}))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_junk(data: bytes) -> None:
    for message in (
        agent_pb2.JoinRequest,
        agent_pb2.Heartbeat,
        agent_pb2.LeaveRequest,
        agent_pb2.StatusRequest,
    ):
        found = parsed(message, data)
        assert isinstance(found, message) or found == Junk(len(data))


@given(st.text(max_size=10_000))
def test_words_fit_in_a_status_with_their_beginning_and_their_end(words: str) -> None:
    cut = shortened(words)
    assert len(cut) <= limits.MOST_WORDS + 60
    assert cut.startswith(words[:900]) and cut.endswith(words[-300:])


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.8.9.10:5", "127.0.0.1"),
        ("ipv4:10.1.2.3:4567", "10.1.2.3"),
        ("ipv6:%5B2001:db8::1%5D:4567", "2001:db8::/64"),
        ("ipv6:%5B2001:db8::ffff:1%5D:4567", "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4567", "fe80::/64"),
        ("unix:", "this machine"),
        ("unix:/run/weir/controller", "this machine"),
    ],
)
def test_an_address_is_that_of_the_machine(peer: str, address: str) -> None:
    assert address_of(peer) == address
