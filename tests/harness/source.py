# SPDX-License-Identifier: Apache-2.0
"""The checkout, for other programs that import its packages without an installation."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def source_path() -> str:
    """Return a PYTHONPATH with which ``weir`` and ``softp4`` are imported from the checkout."""
    return os.pathsep.join(map(str, (ROOT, ROOT / "softswitch")))
