# SPDX-License-Identifier: Apache-2.0
"""Gradients without a network: what is chosen, coded and sent, and how long choosing takes."""

from typing import Final

from weir.bench.case import Case

CASES: Final[tuple[Case, ...]] = ()
