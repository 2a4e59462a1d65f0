# SPDX-License-Identifier: Apache-2.0
"""One module per control of the P4 program. Each alone knows its tables' and actions' names.

All names that the program must have are collected here, so that a test can compare them with P4Info and the
reader of a switch knows which tables are the controller's.
"""

from controller.tables import admission, aggregator, arp, forwarding, results

TABLES = (
    forwarding.L2,
    forwarding.IPV4,
    arp.ADDRESSES,
    aggregator.ADDRESSES,
    results.RECEIVERS,
    admission.WORKERS,
)
