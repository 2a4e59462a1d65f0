# SPDX-License-Identifier: Apache-2.0
"""``losses``: packets lost on purpose, to see what happens then. By ingress port or egress port, and DSCP."""

from weir.controller.entries import TableEntry, Ternary
from weir.controller.qos import Direction, Loss

FAULTS: dict[Direction, str] = {
    "ingress": "WeirIngress.losses.faults",
    "egress": "WeirEgress.losses.faults",
}
LOSE: dict[Direction, str] = {"ingress": "WeirIngress.losses.lose", "egress": "WeirEgress.losses.lose"}
_EVERY_DSCP = Ternary(0, 0)
_ALWAYS = (1 << 32) - 1


def fault(loss: Loss) -> TableEntry:
    """Lose packets as ``loss`` says. One of a single class goes before one of all classes on the same
    port.
    """
    dscp = _EVERY_DSCP if loss.dscp is None else Ternary(loss.dscp, 0x3F)
    return TableEntry(
        FAULTS[loss.direction],
        (("port", loss.port), ("dscp", dscp)),
        LOSE[loss.direction],
        (("probability", min(round(loss.probability * (1 << 32)), _ALWAYS)),),
        priority=1 if loss.dscp is None else 2,
    )
