# SPDX-License-Identifier: Apache-2.0
"""Flows' native code under AddressSanitizer and UndefinedBehaviorSanitizer: every fault, and any bytes."""

import sys
import threading
from random import Random

import numpy as np
import pytest

from tests.fuzzing.sanitized import run_sanitized, runtime
from tests.harness.effort import effort
from tests.host_agent.flows.test_flow import transfer
from tests.host_agent.flows.world import FLOW_ID, Meddling
from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.transport.service_class import ServiceClass
from weir.simulator.link import Faults

TRANSFERS, CONVERSATIONS = effort((10, 50), (40, 200))


@pytest.mark.skipif(runtime() is None, reason="the compiler has no AddressSanitizer")
def test_no_byte_out_of_place() -> None:
    report = run_sanitized([sys.executable, "-m", __name__])
    assert not report.bad, report.output


def every_fault(seed: int) -> None:
    """Send a few tensors through a network that does everything to packets."""
    random = Random(seed)
    faults = Faults(delay=100_000, jitter=200_000, loss=0.1, duplicate=0.1, late=0.02, lateness=500_000_000)
    meddling = Meddling(trim=0.4, trim_any=0.1, mark=0.1, garbage=0.2)
    config = FlowConfig(
        FLOW_ID,
        chunk_lanes=random.choice([1, 7, 352]),
        open_tensors=random.randint(1, 5),
        first_window=random.choice([1, 32]),
        early_stop=bool(seed % 2),
    )
    shape = {"there": faults, "back": faults, "meddling": meddling, "meddling_back": meddling}
    transfer(config, {"seed": seed, **shape}, lossy=bool(seed % 3))


def any_bytes(seed: int) -> None:
    """Change bytes of a conversation at random, at any place: most packets still look like some."""
    random = Random(seed)
    config = FlowConfig(FLOW_ID, chunk_lanes=3, max_lanes=1 << 16, open_tensors=3)
    sender, receiver = FlowSender(config), FlowReceiver(config)
    for lanes in (1, 50, 300):
        sender.submit(
            np.ones(lanes, np.float32), ServiceClass(budgets=np.array([0, 10], np.uint64)[: lanes % 2 + 1])
        )
    now = 0
    for _ in range(30):
        now += 10_000_000
        for here, there in ((sender, receiver), (receiver, sender)):
            for payload, traffic_class in here.poll(now)[0]:
                changed = bytearray(payload)
                for _ in range(random.choice([0, 0, 1, 3])):
                    changed[random.randrange(len(changed))] = random.choice(
                        [0, 1, 2, 255, random.randrange(256)]
                    )
                there.on_packet(bytes(changed[: random.choice([None, None, random.randrange(60)])]), now, 3)
                there.on_packet(payload, now, traffic_class)
        receiver.deliveries()
        assert all((one.missing <= one.budgets).all() for one in sender.settlements())


def real_sockets() -> None:
    """Move a tensor over loopback, by system calls of many packets."""
    with UdpFlows(("127.0.0.1", 0)) as here, UdpFlows(("127.0.0.1", 0)) as there:
        sender, receiver = FlowSender(FlowConfig(FLOW_ID)), FlowReceiver(FlowConfig(FLOW_ID))
        here.mux.add(sender, there.address)
        there.mux.add(receiver, here.address)
        over = threading.Event()
        receiving = threading.Thread(target=there.drive, args=(over.is_set, 60))
        receiving.start()
        try:
            sender.submit(np.ones(100_000, np.float32))
            here.drive(lambda: sender.idle, 60)
        finally:
            over.set()
            receiving.join()
        assert [one.complete for one in receiver.deliveries()] == [True]


if __name__ == "__main__":
    for number in range(TRANSFERS):
        every_fault(number)
    for number in range(CONVERSATIONS):
        any_bytes(number)
    real_sockets()
