# SPDX-License-Identifier: Apache-2.0
"""The P4 programs, and what p4c made of them."""

from pathlib import Path
from typing import Final

BUILD: Final = Path(__file__).resolve().parent / "build"
"""Where the compiled programs are: BMv2 JSON, P4Info, and a manifest with the hashes of their sources."""

PROGRAM: Final = BUILD / "weir_v1model.json"
"""Weir's program for v1model targets: BMv2 and the soft switch."""

WIDE_PROGRAM: Final = BUILD / "weir_v1model_wide.json"
"""The same, built with -DWIDE: it takes wide packets, too."""
