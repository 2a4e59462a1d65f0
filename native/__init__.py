# SPDX-License-Identifier: Apache-2.0
"""What both ends share of native code: the one build mechanism and the shared-memory ports."""

from pathlib import Path
from typing import Final

from weir.native.build import CompileError, NoCompilerError, load_library

INCLUDE: Final = Path(__file__).resolve().parent
"""Directory of ``ring.h``, to be put on a compiler's include path."""

__all__ = ["INCLUDE", "CompileError", "NoCompilerError", "load_library"]
