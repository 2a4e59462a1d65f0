# SPDX-License-Identifier: Apache-2.0
"""The soft switch beside BMv2 and hand-written C: packets, tables, starts, P4Runtime."""

from typing import Final

from weir.bench.case import Case

CASES: Final[tuple[Case, ...]] = ()
