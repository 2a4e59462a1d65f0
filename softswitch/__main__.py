# SPDX-License-Identifier: Apache-2.0
"""``python -m softswitch``: the same as ``weir switch``."""

from softswitch.cli import app

app()
