# SPDX-License-Identifier: Apache-2.0
"""``python -m weir.softswitch``: the same as ``weir switch``."""

from weir.softswitch.cli import app

app()
