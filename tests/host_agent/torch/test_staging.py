# SPDX-License-Identifier: Apache-2.0
"""The order of streams around an operation, and what its handle does, with streams that only take notes."""

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import Future as Outcome
from typing import Any

import pytest
import torch
from torch.futures import Future

from weir.host_agent.torch import staging, work
from weir.host_agent.torch.staging import CallerStreams
from weir.host_agent.torch.work import QueuedWork

DEVICE = torch.device("cuda", 0)


class Cuda:
    """Streams by name, of which one is current. What is done with them is in ``log``."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = Stream(self, "caller's")
        self.numbers = itertools.count(1)

    @contextlib.contextmanager
    def on(self, stream: "Stream") -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Stream:
    cuda_stream = 1234

    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record_event(self) -> "Event":
        event = Event(self.cuda)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        self.cuda.log.append(f"{self.name} waits for {event.name}")

    def query(self) -> bool:
        return True


class Event:
    name = ""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def record(self, stream: Stream) -> None:
        self.name = f"{stream.name} event {next(self.cuda.numbers)}"

    def synchronize(self) -> None:
        self.cuda.log.append(f"this thread waits for {self.name}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: made.current)
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda **_options: Event(made))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device, **_options: Stream(made, "own"))
    monkeypatch.setattr(staging, "_own", type("_", (), {})())
    monkeypatch.setattr(work, "Future", lambda devices: Future())
    return made


def test_an_operation_follows_its_caller_and_whoever_waits_follows_it(cuda: Cuda) -> None:
    streams = CallerStreams([DEVICE])
    with streams.followed():
        assert cuda.current.name == "own"
    with cuda.on(Stream(cuda, "another")):
        streams.join()
    assert cuda.log == ["own waits for caller's event 1", "another waits for own event 2"]


def test_after_a_failure_nothing_is_under_way(cuda: Cuda) -> None:
    streams = CallerStreams([DEVICE])
    with pytest.raises(LookupError), streams.followed():
        raise LookupError
    streams.join()
    assert cuda.log == ["own waits for caller's event 1", "this thread waits for own event 2"]


def in_work(cuda: Cuda, error: Exception | None = None) -> tuple[QueuedWork, Outcome[Any]]:
    """Return the handle of an operation whose device part is enqueued, and the outcome that settles it."""
    streams, outcome = CallerStreams([DEVICE]), Outcome[Any]()
    with contextlib.suppress(LookupError), streams.followed():
        if error is not None:
            raise error
    cuda.log.clear()
    return QueuedWork(outcome, streams), outcome


def test_wait_and_result_put_the_current_stream_behind_the_operation(cuda: Cuda) -> None:
    handle, outcome = in_work(cuda)
    outcome.set_result("done")
    cuda.log.clear()  # of the future
    assert handle.wait()
    assert handle.result() == "done"
    assert cuda.log == ["caller's waits for own event 2"] * 2


def test_the_future_is_completed_behind_the_operation(cuda: Cuda) -> None:
    handle, outcome = in_work(cuda)
    seen: list[list[str]] = []
    handle.get_future().add_done_callback(lambda _future: seen.append(list(cuda.log)))
    with cuda.on(Stream(cuda, "future's")):
        outcome.set_result("done")
    assert handle.get_future().wait() == "done"
    assert seen == [["future's waits for own event 2"]]


def test_a_failure_is_raised_by_the_handle_and_the_future(cuda: Cuda) -> None:
    handle, outcome = in_work(cuda, LookupError())
    outcome.set_exception(ArithmeticError("no number"))
    with pytest.raises(ArithmeticError):
        handle.wait()
    with pytest.raises(RuntimeError, match="no number"):
        handle.get_future().wait()
    assert cuda.log == []


def test_a_blocked_stream_is_one_that_waits_for_the_event(cuda: Cuda) -> None:
    handle, outcome = in_work(cuda)
    outcome.set_result(None)
    cuda.log.clear()
    handle.block_current_stream()
    assert cuda.log == ["caller's waits for own event 2"]


def test_an_operation_without_a_device_is_waited_for() -> None:
    outcome: Outcome[Any] = Outcome()
    outcome.set_exception(ArithmeticError())
    with pytest.raises(ArithmeticError):
        QueuedWork(outcome).block_current_stream()
