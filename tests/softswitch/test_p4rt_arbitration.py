# SPDX-License-Identifier: Apache-2.0
"""Who is primary, over every way in which controllers come, change and go."""

import pytest

from softswitch.errors import Code, ControlError
from softswitch.p4rt.arbitration import MAX_STREAMS, Arbiter, Notice

PRIMARY = 0
BACKUP = int(Code.ALREADY_EXISTS)
NOBODY = int(Code.NOT_FOUND)


def told(notices: list[Notice]) -> dict[object, tuple[int, int | None]]:
    return {notice.stream: (notice.code, notice.election_id) for notice in notices}


def test_the_first_controller_is_primary() -> None:
    assert told(Arbiter().update("a", "", 5)) == {"a": (PRIMARY, 5)}


def test_a_lower_election_id_is_backup_and_only_it_hears_so() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 5)
    assert told(arbiter.update("b", "", 4)) == {"b": (BACKUP, 5)}


def test_a_higher_election_id_takes_over_and_both_hear_so() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 5)
    assert told(arbiter.update("b", "", 6)) == {"a": (BACKUP, 6), "b": (PRIMARY, 6)}
    arbiter.check_writer("", 6)
    with pytest.raises(ControlError) as refused:
        arbiter.check_writer("", 5)
    assert refused.value.code == Code.PERMISSION_DENIED


def test_when_the_primary_leaves_the_next_is_promoted() -> None:
    arbiter = Arbiter()
    for stream, election in (("a", 7), ("b", 5), ("c", 6)):
        arbiter.update(stream, "", election)
    assert told(arbiter.leave("a")) == {"b": (BACKUP, 6), "c": (PRIMARY, 6)}
    arbiter.check_writer("", 6)


def test_when_a_backup_leaves_nobody_is_told() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("b", "", 5)
    assert arbiter.leave("b") == []
    assert arbiter.leave("b") == []


def test_a_primary_can_step_down() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("b", "", 5)
    assert told(arbiter.update("a", "", 1)) == {"a": (BACKUP, 5), "b": (PRIMARY, 5)}


def test_without_an_election_id_one_is_never_primary() -> None:
    arbiter = Arbiter()
    assert told(arbiter.update("a", "", None)) == {"a": (NOBODY, None)}
    assert arbiter.primary("") is None
    with pytest.raises(ControlError, match="no primary"):
        arbiter.check_writer("", 0)
    assert told(arbiter.update("b", "", 0)) == {"a": (BACKUP, 0), "b": (PRIMARY, 0)}
    assert told(arbiter.leave("b")) == {"a": (NOBODY, 0)}


def test_repeating_an_update_is_answered_to_its_sender_only() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("b", "", 5)
    assert told(arbiter.update("a", "", 7)) == {"a": (PRIMARY, 7)}


def test_an_election_id_in_use_is_refused_and_changes_nothing() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    with pytest.raises(ControlError) as refused:
        arbiter.update("b", "", 7)
    assert refused.value.code == Code.INVALID_ARGUMENT
    assert arbiter.primary("") == "a"
    assert arbiter.leave("b") == []


def test_roles_have_primaries_of_their_own() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    assert told(arbiter.update("b", "routing", 7)) == {"b": (PRIMARY, 7)}
    assert arbiter.primaries() == ["a", "b"]
    with pytest.raises(ControlError) as refused:
        arbiter.check_writer("qos", 7)
    assert refused.value.code == Code.NOT_FOUND


def test_a_stream_keeps_its_role() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    with pytest.raises(ControlError) as refused:
        arbiter.update("a", "routing", 7)
    assert refused.value.code == Code.FAILED_PRECONDITION


def test_streams_are_limited_and_a_place_becomes_free_again() -> None:
    arbiter = Arbiter()
    for stream in range(MAX_STREAMS):
        arbiter.update(stream, "", stream)
    with pytest.raises(ControlError) as refused:
        arbiter.update("late", "", 1000)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    arbiter.leave(0)
    assert told(arbiter.update("late", "", 1000))["late"] == (PRIMARY, 1000)
