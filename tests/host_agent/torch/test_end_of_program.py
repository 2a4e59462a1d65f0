# SPDX-License-Identifier: Apache-2.0
"""Groups that a program has not left when it ends."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from weir.host_agent.torch import connection
from weir.host_agent.transport.operations import OperationQueue


class Group:
    """What the end of a program needs of a connection; its operation runs until it is interrupted."""

    def __init__(self, close: Callable[["Group"], None] = lambda group: group.operations.close()) -> None:
        self.operations = OperationQueue("test")
        self._close, self._interrupted = close, threading.Event()

    def stand_still(self) -> None:
        assert self._interrupted.wait(60)

    def interrupt(self, reason: str) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._close(self)

    def _name(self) -> str:
        return "a group"


def end(monkeypatch: pytest.MonkeyPatch, groups: list[Any]) -> None:
    """End a program that has these groups."""
    monkeypatch.setattr(connection, "_open", groups)
    main = threading.Thread(target=lambda: None)
    main.start()
    monkeypatch.setattr(threading, "main_thread", lambda: main)
    ending = threading.Thread(target=connection._close_after_main, daemon=True)
    ending.start()
    ending.join(30)
    assert not ending.is_alive()


def test_a_callback_that_waits_for_another_group_does_not_keep_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Group(), Group()
    second.operations.submit(lambda: None).add_done_callback(
        lambda _: first.operations.submit(first.stand_still).result(60)
    )
    end(monkeypatch, [first, second])


def test_a_group_that_cannot_be_left_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(group: Group) -> None:
        group.operations.close()
        raise OSError("no way")

    left = Group()
    end(monkeypatch, [left, Group(fail)])
    assert "a group could not be left" in caplog.text
    with pytest.raises(RuntimeError, match="closed"):
        left.operations.submit(lambda: None)
