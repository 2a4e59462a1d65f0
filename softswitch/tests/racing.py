# SPDX-License-Identifier: Apache-2.0
"""Frames through a switch with threads while its control plane works, to be watched by a sanitizer."""

import contextlib
import random
import sys
import threading
from pathlib import Path

from softp4.dataplane.ports import PortLoop
from softp4.native.ring import ShmPort
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.programs import program
from tests.test_threads import REQUESTED, fill, requests


def main(folder: Path) -> None:
    with Switch(program("shards"), threads=3) as switch, contextlib.closing(PortLoop()) as loop:
        fill({1: ("add", (64,)), 2: ("mark", (128,)), 3: ("look", ())})(switch)
        for port in range(4):
            loop.add_shm(port, folder)
        loop.set_switch(switch)
        loop.start()
        sending = threading.Thread(target=send, args=(switch, folder))
        sending.start()
        turn = 0
        while sending.is_alive():
            turn += 1
            switch.threads.share()
            assert switch.threads.by == "request.slot & 0x3f", switch.threads
            switch.table(REQUESTED).insert(Entry((Exact(9),), "In.add", (64 + turn % 2,)))
            switch.table(REQUESTED).count((Exact(1),))
            switch.counter("In.requests").read(1)
            switch.register("In.sums").read(turn % 512)
            switch.multicast_groups.set(1, [(turn % 4, 0)])
            switch.statistics()
            loop.statistics(1)
            switch.table(REQUESTED).delete((Exact(9),))
        sending.join()
        assert switch.statistics().packets_in > 2_000


def send(switch: Switch, folder: Path) -> None:
    """Send frames so that many wait when the switch comes to them."""
    rng = random.Random(1)
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(ShmPort(folder, number)) for number in range(4)]
        for _ in range(15):
            with switch.paused():
                for port in ports:
                    for _, frame in requests(rng, [1, 2, 3, 7], 60):
                        port.send(frame)
            for port in ports:
                while port.recv(0.01):
                    pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
