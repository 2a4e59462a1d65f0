# SPDX-License-Identifier: Apache-2.0
"""The hand-written aggregator as a process; arguments: JOB WORKERS SLOTS INTERFACE...

It runs under the soft switch's port loop, so that a comparison measures the pipelines and not the sockets.
Ends when its standard input does.
"""

import sys

from softp4.dataplane.ports import PortLoop
from weir.bench.switch.native import Aggregator


def main() -> None:
    """Serve worker i on the i-th interface until end of input."""
    job, workers, slots, *interfaces = sys.argv[1:]
    aggregator = Aggregator(int(job), int(workers), int(slots))
    with PortLoop() as loop:
        for number, interface in enumerate(interfaces, 1):
            loop.add_interface(number, interface)
        loop.set_switch(aggregator)
        loop.start()
        print("ready", flush=True)
        sys.stdin.read()
    aggregator.close()


if __name__ == "__main__":
    main()
