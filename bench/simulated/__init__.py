# SPDX-License-Identifier: Apache-2.0
"""Networks in virtual time: the real switch program and host code, simulated links."""

from typing import Final

from weir.bench.case import Case

CASES: Final[tuple[Case, ...]] = ()
