# SPDX-License-Identifier: Apache-2.0
"""One module per control of the P4 program. Each alone knows its tables' and actions' names.

All names that the program must have are collected here, so that a test can compare them with P4Info and the
reader of a switch knows which tables are the controller's.
"""

from weir.controller.tables import (
    admission,
    aggregator,
    arp,
    forwarding,
    losses,
    queueing,
    results,
    sources,
    spraying,
    tree,
)

TABLES = (
    forwarding.L2,
    forwarding.IPV4,
    arp.ADDRESSES,
    aggregator.ADDRESSES,
    sources.STATIONS,
    sources.ADDRESSES,
    spraying.GROUPS,
    spraying.PATHS,
    queueing.CLASSES,
    *losses.FAULTS.values(),
    results.RECEIVERS,
    tree.UPLINKS,
    *admission.GATES,
)
