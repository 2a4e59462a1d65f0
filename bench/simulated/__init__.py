# SPDX-License-Identifier: Apache-2.0
"""Networks in virtual time: the real switch program and host code, simulated links."""

from typing import Final

from weir.bench.case import Case

CASES: Final = (
    Case(
        "simulated",
        "scale",
        "One sum over ever more workers: racks of 32, then two tiers, then three; every sum is checked.",
        "minutes",
        {"workers": "2,40", "kilobytes": "4"},
        seeds=1,
    ),
)
