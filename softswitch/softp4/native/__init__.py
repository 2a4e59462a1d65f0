# SPDX-License-Identifier: Apache-2.0
"""The part that both ends share: the build of native code, shared-memory ports, and files that appear whole.

Knows nothing of switches, hosts or what they say to each other; every other room may import it.
"""

from pathlib import Path
from typing import Final

from softp4.native.build import CompileError, NoCompilerError, Signatures, load_library

INCLUDE: Final = Path(__file__).resolve().parent
"""Directory of ``ring.h``, to be put on a compiler's include path."""

__all__ = ["INCLUDE", "CompileError", "NoCompilerError", "Signatures", "load_library"]
