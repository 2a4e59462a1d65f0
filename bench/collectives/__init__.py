# SPDX-License-Identifier: Apache-2.0
"""Collectives of ``torch.distributed`` and copies, over Weir and over its peers, on the same links."""

from typing import Final

from weir.bench.case import Case

CASES: Final = (
    Case(
        "collectives",
        "latency",
        "Time small collectives over Weir and over Gloo; over shaped links, too, as root.",
        "minutes",
        {"workers": "2", "kilobytes": "4", "rates": "", "calls": "2"},
        repeats=7,
    ),
)
