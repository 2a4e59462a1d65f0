# SPDX-License-Identifier: Apache-2.0
"""``python -m softp4 run``: the same as ``weir switch``."""

from softp4.cli import app

app()
