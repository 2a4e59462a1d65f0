# SPDX-License-Identifier: Apache-2.0
"""Wrong tokens, calls that wait and log lines: how many of them, at which time."""

import itertools
import logging
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weir.controller import throttle
from weir.controller.throttle import FREE_GUESSES, GUESS_EVERY_S, MOST_WAIT_S, Repeats, TokenGuesses, Waiting

NUMBERS = itertools.count()


def guess(guesses: TokenGuesses, who: str, now: float, token: str = "") -> float | None:
    """Return when a wrong token of ``who``, usually a new one, is looked at; None if never."""
    token = token or f"guess {next(NUMBERS)}"
    wait = guesses.turn(who, "job", token, now)
    if wait is None:
        return None
    guesses.wrong(who, "job", token, now + wait)
    return now + wait


@given(st.lists(st.floats(0.0, 0.5), min_size=50, max_size=200))
def test_after_the_free_ones_at_most_one_token_a_second_is_looked_at(pauses: list[float]) -> None:
    guesses, now, seen = TokenGuesses(), 0.0, []
    for pause in pauses:
        now += pause
        if (at := guess(guesses, "mallory", now)) is not None:
            seen.append(at)
            assert at - now <= MOST_WAIT_S
    late = sorted(seen)[FREE_GUESSES:]
    assert all(after - before >= GUESS_EVERY_S - 1e-9 for before, after in pairwise(late))
    assert len(late) <= now / GUESS_EVERY_S + MOST_WAIT_S + 2


def test_other_addresses_and_other_jobs_are_not_slowed() -> None:
    guesses = TokenGuesses()
    for _ in range(100):
        guess(guesses, "mallory", 1.0)
    assert guesses.turn("mallory", "job", "new", 1.0) is None
    assert guesses.turn("alice", "job", "new", 1.0) == 0.0
    assert guesses.turn("mallory", "another", "new", 1.0) == 0.0


def test_a_wrong_token_that_all_workers_share_counts_once() -> None:
    guesses = TokenGuesses()
    assert [guess(guesses, "host", 1.0, "old") for _ in range(100)] == [1.0] * 100
    for _ in range(FREE_GUESSES - 1):
        assert guess(guesses, "host", 1.0) == 1.0
    assert guess(guesses, "host", 1.0, "old") == 1.0
    assert guess(guesses, "host", 1.0) != 1.0
    for _ in range(2 * FREE_GUESSES):  # this many others, and it is a guess like any
        guess(guesses, "host", 100.0)
    assert guess(guesses, "host", 100.0, "old") is None


def test_wrong_tokens_are_forgiven_in_time() -> None:
    guesses = TokenGuesses()
    for number in range(FREE_GUESSES + 1):
        guess(guesses, "alice", number * 1.0)
    assert guesses.turn("alice", "job", "new", FREE_GUESSES + 0.5) != 0.0
    assert guesses.turn("alice", "job", "new", 3600.0) == 0.0


def test_so_many_addresses_are_remembered_and_no_more() -> None:
    guesses = TokenGuesses()
    for number in range(3 * throttle._MOST_KEYS):
        guess(guesses, f"host {number}", 1.0)
    assert len(guesses._of) == throttle._MOST_KEYS


def test_calls_of_one_address_do_not_keep_others_out() -> None:
    waiting = Waiting("joins", 7)
    for _ in range(7):
        assert waiting.enter("mallory") == ""
    assert waiting.enter("mallory") == "7 joins from mallory wait already"
    assert waiting.enter("alice") == ""
    waiting.leave("mallory")
    assert waiting.enter("mallory") == ""


def test_all_addresses_together_have_a_limit() -> None:
    waiting = Waiting("joins", 10, 50)
    for number in range(50):
        assert waiting.enter(f"host {number // 10}") == ""
    assert waiting.enter("one more") == "50 joins wait already"
    waiting.leave("host 0")
    assert waiting.enter("one more") == ""


def test_the_first_line_of_a_kind_is_written_and_then_how_many_more() -> None:
    repeats = Repeats()
    assert repeats.admit("junk", "junk of 9 bytes", 0.0)
    assert not any(repeats.admit("junk", f"junk of {size} bytes", 1.0) for size in range(199))
    assert repeats.admit("guess", "a wrong token", 1.0)
    assert repeats.due(9.0) == []
    assert repeats.due(10.0) == [(logging.WARNING, "junk of 198 bytes; and 198 more like it")]
    assert repeats.due(30.0) == []
    assert repeats.admit("junk", "junk again", 31.0)


def test_several_of_a_kind_may_be_written_at_once() -> None:
    repeats = Repeats()
    lines = [f"job {number} ended" for number in range(300)]
    assert [line for line in lines if repeats.admit("ended", line, 0.0, logging.INFO, first=5)] == lines[:5]
    assert repeats.due(10.0) == [(logging.INFO, "job 299 ended; and 294 more like it")]


def test_kinds_without_end_are_one_kind() -> None:
    repeats = Repeats()
    written = sum(repeats.admit(f"kind {number}", "line", 0.0) for number in range(10_000))
    assert written == throttle._MOST_KINDS + 1
