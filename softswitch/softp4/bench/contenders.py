# SPDX-License-Identifier: Apache-2.0
"""Measurements that alternate, and free ports for the processes that they measure."""

import socket
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def take_turns(
    contenders: Mapping[str, Callable[[], T]], repeats: int, warm_up: bool = True
) -> dict[str, list[T]]:
    """Return what each contender measured in every repetition; the contenders alternate, after a warm-up."""
    taken: dict[str, list[T]] = {name: [] for name in contenders}
    for repeat in range(repeats + warm_up):
        for name, measure in contenders.items():
            one = measure()
            if repeat >= warm_up:
                taken[name].append(one)
    return taken


def free_port() -> int:
    """Return a TCP port that nobody listens on now (in a namespace of its own, any port is free)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
