# SPDX-License-Identifier: Apache-2.0
"""Work that goes on whatever goes wrong in it."""

import logging

import pytest

from softp4.failures import Failures


def test_what_fails_is_logged_ever_more_rarely_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.getLogger("softp4"), "a message was lost")
    done = []
    for turn in range(20):
        with failures.survived():
            done.append(turn)
            raise KeyError(turn)
    assert done == list(range(20))
    said = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
    assert said == [(f"a message was lost ({count} so far)", True) for count in (1, 2, 4, 8, 16)]


def test_what_succeeds_is_not_logged_and_an_end_is_an_end(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.getLogger("softp4"), "a message was lost")
    with failures.survived():
        pass
    with pytest.raises(KeyboardInterrupt), failures.survived():
        raise KeyboardInterrupt
    assert caplog.records == []
