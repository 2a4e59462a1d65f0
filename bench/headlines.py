# SPDX-License-Identifier: Apache-2.0
"""The claims of these pages, and the published figures that they stand beside."""

from typing import Final

from weir.bench.claims import Claim, Published

CLAIMS: Final[tuple[Claim, ...]] = ()

PUBLISHED: Final[tuple[Published, ...]] = ()
