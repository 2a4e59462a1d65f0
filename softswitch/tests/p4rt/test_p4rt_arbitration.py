# SPDX-License-Identifier: Apache-2.0
"""Who is primary, over every way in which controllers come, change and go."""

import pytest

from softp4.errors import Code, ControlError
from softp4.p4rt.arbitration import MAX_ROLES, MAX_STREAMS, Arbiter, Notice

PRIMARY = 0
BACKUP = int(Code.ALREADY_EXISTS)
NOBODY = int(Code.NOT_FOUND)


def told(notices: list[Notice]) -> dict[object, tuple[int, int | None]]:
    return {notice.stream: (notice.code, notice.election_id) for notice in notices}


def refusal(arbiter: Arbiter, role: str, election_id: int | None) -> Code:
    with pytest.raises(ControlError) as refused:
        arbiter.check_writer(role, election_id)
    return refused.value.code


def test_the_first_controller_is_primary() -> None:
    assert told(Arbiter().update("a", "", 5)) == {"a": (PRIMARY, 5)}


def test_a_lower_election_id_is_backup_and_only_it_hears_so() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 5)
    assert told(arbiter.update("b", "", 4)) == {"b": (BACKUP, 5)}


def test_a_higher_election_id_takes_over_and_everybody_hears_so_the_new_primary_last() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 5)
    arbiter.update("b", "", 3)
    notices = arbiter.update("b", "", 6)
    assert told(notices) == {"a": (BACKUP, 6), "b": (PRIMARY, 6)}
    assert notices[-1].stream == "b"
    arbiter.check_writer("", 6)
    assert refusal(arbiter, "", 5) == Code.PERMISSION_DENIED


def test_nobody_inherits_from_a_primary_that_leaves() -> None:
    arbiter = Arbiter()
    for stream, election in (("a", 7), ("b", 5), ("c", 6)):
        arbiter.update(stream, "", election)
    assert told(arbiter.leave("a")) == {"b": (NOBODY, 7), "c": (NOBODY, 7)}
    for election in (5, 6, 7):
        assert refusal(arbiter, "", election) == Code.PERMISSION_DENIED
    assert told(arbiter.update("c", "", 6)) == {"c": (NOBODY, 7)}
    assert told(arbiter.update("c", "", 8)) == {"b": (BACKUP, 8), "c": (PRIMARY, 8)}
    arbiter.check_writer("", 8)


def test_a_primary_comes_back_with_the_same_election_id() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.leave("a")
    assert told(arbiter.update("b", "", 6)) == {"b": (NOBODY, 7)}
    assert told(arbiter.update("again", "", 7)) == {"b": (BACKUP, 7), "again": (PRIMARY, 7)}


def test_when_a_backup_leaves_nobody_is_told() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("b", "", 5)
    assert arbiter.leave("b") == []
    assert arbiter.leave("b") == []


@pytest.mark.parametrize("lower", [1, None])
def test_a_primary_can_step_down(lower: int | None) -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("b", "", 5)
    assert told(arbiter.update("a", "", lower)) == {"a": (NOBODY, 7), "b": (NOBODY, 7)}
    assert arbiter.primary("") is None


def test_without_an_election_id_one_is_never_primary() -> None:
    arbiter = Arbiter()
    assert told(arbiter.update("a", "", None)) == {"a": (NOBODY, None)}
    assert arbiter.primary("") is None
    assert refusal(arbiter, "", 0) == refusal(arbiter, "", None) == Code.PERMISSION_DENIED


def test_election_id_zero_is_one() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", None)
    assert told(arbiter.update("b", "", 0)) == {"a": (BACKUP, 0), "b": (PRIMARY, 0)}
    arbiter.check_writer("", 0)
    assert refusal(arbiter, "", None) == Code.PERMISSION_DENIED
    assert told(arbiter.leave("b")) == {"a": (NOBODY, 0)}


def test_a_primary_that_repeats_itself_is_announced_again() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("b", "", 5)
    assert told(arbiter.update("a", "", 7)) == {"a": (PRIMARY, 7), "b": (BACKUP, 7)}
    assert told(arbiter.update("b", "", 5)) == {"b": (BACKUP, 7)}


def test_an_election_id_in_use_is_refused_and_changes_nothing() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    arbiter.update("c", "", 3)
    for stream, election in (("b", 7), ("b", 3), ("c", 7)):
        with pytest.raises(ControlError) as refused:
            arbiter.update(stream, "", election)
        assert refused.value.code == Code.INVALID_ARGUMENT
    assert arbiter.primary("") == "a"
    assert arbiter.leave("b") == []
    arbiter.update("d", "", None)
    assert told(arbiter.update("e", "", None)) == {"e": (BACKUP, 7)}


def test_roles_have_primaries_of_their_own() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    assert told(arbiter.update("b", "routing", 4)) == {"b": (PRIMARY, 4)}
    assert arbiter.primaries() == ["a", "b"]
    arbiter.check_writer("routing", 4)
    assert refusal(arbiter, "routing", 7) == Code.PERMISSION_DENIED
    assert refusal(arbiter, "qos", 7) == Code.NOT_FOUND
    arbiter.leave("b")
    assert refusal(arbiter, "routing", 4) == Code.PERMISSION_DENIED


def test_a_stream_keeps_its_role() -> None:
    arbiter = Arbiter()
    arbiter.update("a", "", 7)
    with pytest.raises(ControlError) as refused:
        arbiter.update("a", "routing", 7)
    assert refused.value.code == Code.FAILED_PRECONDITION
    assert refusal(arbiter, "routing", 7) == Code.NOT_FOUND


def test_streams_of_a_role_are_limited_and_a_place_becomes_free_again() -> None:
    arbiter = Arbiter()
    for stream in range(MAX_STREAMS):
        arbiter.update(stream, "", stream)
    with pytest.raises(ControlError) as refused:
        arbiter.update("late", "", 1000)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    assert told(arbiter.update("other", "routing", 1)) == {"other": (PRIMARY, 1)}
    arbiter.update(3, "", 3)
    arbiter.leave(0)
    assert told(arbiter.update("late", "", 1000))["late"] == (PRIMARY, 1000)


def test_roles_are_limited() -> None:
    arbiter = Arbiter()
    for number in range(MAX_ROLES - 1):
        arbiter.update(number, f"role {number}", 1)
        arbiter.leave(number)
    with pytest.raises(ControlError) as refused:
        arbiter.update("late", "one more", 1)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    arbiter.update("known", "role 3", 1)
