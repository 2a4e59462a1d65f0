# SPDX-License-Identifier: Apache-2.0
"""Ranks of a host find their leader, although others call it, too."""

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from weir.host_agent.torch import host_channel
from weir.host_agent.torch.host_channel import gathered
from weir.host_agent.torch.rendezvous import RendezvousError
from weir.host_agent.transport.operations import complete

NOBODY = 65534


@pytest.fixture
def strangers() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def lead(name: str, timeout_s: float) -> "Future[list[int]]":
    """Return the ranks that come, in the end, to rank 0 of three on this host."""

    def find() -> list[int]:
        with gathered(name, [0, 1, 2], timeout_s) as found:
            for sock in found.values():
                sock.close()
            return sorted(found)

    outcome: Future[list[int]] = Future()
    threading.Thread(target=complete, args=(outcome, find), daemon=True).start()
    return outcome


def call(name: str, said: bytes, stack: contextlib.ExitStack) -> None:
    """Connect to the leader, and say something."""
    sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    sock.settimeout(20)
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            sock.connect(host_channel._address(name, 0))
            break
    sock.sendall(said)


def rank(number: int) -> bytes:
    return json.dumps({"rank": number}).encode() + b"\n"


@pytest.mark.root
def test_other_users_who_say_nothing_delay_nobody(
    monkeypatch: pytest.MonkeyPatch, strangers: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(host_channel, "_SILENT_S", 100.0)
    name = secrets.token_hex(8)
    found = lead(name, 100.0)
    os.seteuid(NOBODY)
    try:
        call(name, b"", strangers)
    finally:
        os.seteuid(0)
    for number in (1, 2):
        call(name, rank(number), strangers)
    assert found.result(20) == [1, 2]


def test_one_who_says_nothing_does_not_prolong_the_wait(
    monkeypatch: pytest.MonkeyPatch, strangers: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(host_channel, "_SILENT_S", 100.0)
    name = secrets.token_hex(8)
    found = lead(name, 1.0)
    call(name, rank(2), strangers)
    call(name, b"", strangers)
    with pytest.raises(RendezvousError, match=r"^rank 1 of this host did not come within 1 s"):
        found.result(20)
