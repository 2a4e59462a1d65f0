# SPDX-License-Identifier: Apache-2.0
"""``bmv2_queues.py RATE DEPTH PORT...``: limit the queues of the BMv2 of this network namespace.

RATE: packets a second that each queue may send. DEPTH: packets that it holds. Run by Weir's own Python, where
the switch's Thrift service is.
"""

import sys

from weir.controller.qos import QueueSpec
from weir.controller.queue_driver import QueueDriverError, set_queues

THRIFT = "127.0.0.1:9090"  # its default

if __name__ == "__main__":
    rate, depth, *ports = map(int, sys.argv[1:])
    try:
        set_queues(THRIFT, [QueueSpec(switch="", port=port, rate_pps=rate, depth=depth) for port in ports])
    except (QueueDriverError, ValueError) as error:
        sys.exit(str(error))
