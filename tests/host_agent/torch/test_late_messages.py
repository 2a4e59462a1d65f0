# SPDX-License-Identifier: Apache-2.0
"""Messages whose bytes a device has not given yet: they are offered at once, and hold up no others."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch.distributed as dist

from weir.host_agent.torch.point_to_point.inbox import Receive, Send
from weir.host_agent.torch.point_to_point.messenger import Messenger

SIZE = 2
SOON_S = 10.0


@dataclass
class Everybody:
    """Members of which nobody goes."""

    broken: str | None = None
    departed: dict[int, str] = field(default_factory=dict)


@pytest.fixture
def messengers() -> Iterator[list[Messenger]]:
    store = dist.HashStore()
    made = [Messenger(rank, SIZE, store, "127.0.0.1", Everybody()) for rank in range(SIZE)]
    yield made
    for messenger in made:
        messenger.close()


def receive(messenger: Messenger, tag: int, size: int) -> tuple[Receive, bytearray]:
    """Begin to receive from rank 0; return the receive, and the memory that it fills."""
    memory = bytearray(size)
    wish = Receive(0, tag, "uint8", memoryview(memory), lambda: None)
    messenger.receive(wish)
    return wish, memory


class Device:
    """Says when it has given a message, or fails."""

    def __init__(self) -> None:
        self.is_done, self.looks, self.error = False, 0, ""

    def is_ready(self) -> bool:
        self.looks += 1
        if self.error:
            raise RuntimeError(self.error)
        return self.is_done


def test_a_message_that_is_not_there_yet_lets_others_pass(messengers: list[Messenger]) -> None:
    device, data = Device(), bytearray(5)
    late = Send(1, 1, "uint8", memoryview(data), device.is_ready)
    prompt = Send(1, 2, "uint8", memoryview(b"there"))
    messengers[0].send(late)
    messengers[0].send(prompt)
    slow, slow_memory = receive(messengers[1], 1, 5)
    quick, quick_memory = receive(messengers[1], 2, 5)
    assert quick.outcome.result(SOON_S) == 0
    assert quick_memory == b"there"
    assert not slow.outcome.done()
    assert not late.outcome.done()
    data[:] = b"later"
    device.is_done = True
    assert slow.outcome.result(SOON_S) == 0
    assert late.outcome.result(SOON_S) == 1
    assert slow_memory == b"later"
    assert device.looks > 1


def test_a_device_that_fails_fails_its_message_alone(messengers: list[Messenger]) -> None:
    device = Device()
    device.error = "an illegal memory access was encountered"
    bad = Send(1, 1, "uint8", memoryview(b"never"), device.is_ready)
    messengers[0].send(bad)
    receive(messengers[1], 1, 5)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bad.outcome.result(SOON_S)
    messengers[0].send(Send(1, 2, "uint8", memoryview(b"there")))
    good, memory = receive(messengers[1], 2, 5)
    assert good.outcome.result(SOON_S) == 0
    assert memory == b"there"
