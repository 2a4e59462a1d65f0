# SPDX-License-Identifier: Apache-2.0
"""Training: time and accuracy of Weir's methods and of peers, on the same links."""

from typing import Final

from weir.bench.case import Case

CASES: Final[tuple[Case, ...]] = ()
