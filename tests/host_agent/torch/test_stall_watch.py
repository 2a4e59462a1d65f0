# SPDX-License-Identifier: Apache-2.0
"""What is said of a reduction that stands still while a switch refuses packets."""

import itertools
import threading
import time
from typing import Any

import pytest

from tests.controller.helpers import until
from weir.agent_service.proto import agent_pb2
from weir.host_agent.torch import stall_watch
from weir.host_agent.torch.stall_watch import StallWatch
from weir.wire.definition import EVENT_HELP, Event

JOB = 77


def status(call: int, refused: Event | None, sent: tuple[int, int]) -> Any:
    """Return the controller's answer to the n-th call; this many packets more are counted each time."""
    events = [
        agent_pb2.EventCount(
            event=event,
            name=event.name.lower(),
            help=EVENT_HELP[event],
            count=agent_pb2.Traffic(packets=1000 + (86 * call if event is refused else 0)),
        )
        for event in Event
    ]
    members = [
        agent_pb2.MemberStatus(rank=rank, up=agent_pb2.Traffic(packets=10 + more * call))
        for rank, more in enumerate(sent)
    ]
    return agent_pb2.StatusReply(
        switches=[agent_pb2.SwitchStatus(name="s1", state="ready", events=events)],
        jobs=[agent_pb2.JobStatus(name="digits", job_id=JOB, leaves=["s1"], members=members)],
    )


def words(monkeypatch: pytest.MonkeyPatch, refused: Event | None, sent: tuple[int, int]) -> str:
    """Return what is said when two workers send this many packets while somebody's are refused."""
    for name in ("_POLL_S", "_COUNTED_S"):
        monkeypatch.setattr(stall_watch, name, 0.01)
    calls = itertools.count()
    began = time.monotonic() - 10
    gone: list[str] = []
    watch = StallWatch(
        "digits",
        lambda: JOB,
        lambda: began,
        lambda: status(next(calls), refused, sent),
        [(0,), (1,)],
        gone.append,
    )
    until(lambda: bool(watch.words))
    watch.close()
    assert not gone
    return watch.words


@pytest.mark.parametrize("event", [Event.DROP_WRONG_SENDER, Event.DROP_FAR_ROUND, Event.DROP_NOT_ADMITTED])
def test_refused_packets_are_named_with_their_reason(monkeypatch: pytest.MonkeyPatch, event: Event) -> None:
    said = words(monkeypatch, event, (5, 0))
    missing = "still waiting for rank 1 of 2, from which the switch gets no packets"
    refused = f"; switch s1 refused 86 packets meanwhile, {event.name.lower()}: {EVENT_HELP[event]}"
    assert said == missing + refused


def test_what_was_refused_before_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words(monkeypatch, None, (5, 5)).endswith("do they call the same collectives?")
    assert "refused" not in words(monkeypatch, Event.DROP_STALE_ROUND, (5, 0))


@pytest.mark.parametrize("ends", ["moves", "closed", "still"])
def test_only_a_reduction_that_still_stands_still_can_have_lost_its_job(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A group that is left has no job either, and the watch may be asking the controller just then."""
    for name in ("_POLL_S", "_COUNTED_S"):
        monkeypatch.setattr(stall_watch, name, 0.01)
    monkeypatch.setattr(stall_watch, "FIRST_S", 0.02)
    stalled, moved = time.monotonic() - 10, threading.Event()
    gone: list[str] = []
    asked, looked_since = itertools.count(), itertools.count()

    def since() -> float | None:
        if not moved.is_set():
            return stalled
        if next(looked_since) == 1:  # it has looked after the answer, and does so again
            watch.close()
        return None

    def answer() -> Any:
        if next(asked) == 1:
            if ends == "moves":
                moved.set()
            elif ends == "closed":
                watch.close()
        return agent_pb2.StatusReply()

    watch = StallWatch("digits", lambda: JOB, since, answer, [(0,), (1,)], gone.append)
    until(watch._ended.is_set)
    assert next(asked) == 2
    assert len(gone) == (ends == "still")
