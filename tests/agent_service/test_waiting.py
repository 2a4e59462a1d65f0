# SPDX-License-Identifier: Apache-2.0
"""The lines of a wait: after 5 s, then less and less often; none of a wait that is over."""

import logging

import pytest

from weir.agent_service.waiting import WaitLines


def test_lines_come_less_and_less_often_until_the_wait_is_over(caplog: pytest.LogCaptureFixture) -> None:
    lines = WaitLines(logging.getLogger("weir.test"))
    due = [second for second in range(100, 200) if lines.look(second, lambda: "a server")]
    assert [second - 100 for second in due] == [5, 10, 20, 40, 80]
    assert caplog.messages[:2] == [f"after {after} s still waiting for a server" for after in (5, 10)]
    lines.over()
    caplog.clear()
    assert not any(lines.look(second, lambda: "a server") for second in range(200, 205))
    assert lines.look(205, lambda: "") and not caplog.messages, "nothing to say"
