# SPDX-License-Identifier: Apache-2.0
"""From a loaded program to a loaded native library.

Both steps are cached on disk, by content: the C text by the program and the generator's own sources, the
compiled library (softp4.native.build) by the C text, so that a second start only reads files.
"""

import functools
import hashlib
from pathlib import Path
from typing import Final

from softp4.native.build import load_library, packaged_file
from softp4.program.types import Program
from softp4.runtime.bindings import SIGNATURES, Library
from softp4.runtime.kept_files import generator_digest, kept

RUNTIME: Final = Path(__file__).parent
"""Folder of the C that every program is compiled with."""

# Generated code views register cells and packet bytes through pointers of several types.
_FLAGS: Final = ("-fno-strict-aliasing",)


_TRACED: Final = ("-O1",)  # code with tracepoints is long and need not be fast


def load_switch_library(program: Program, *, trace: bool = False) -> Library:
    """Generate, compile (or find in the cache) and load the code of a program.

    With `trace`, its code with tracepoints, for `NativeSwitch.start_trace` of the plain one.

    Raises:
        UnsupportedConstruct: the program computes something this switch cannot.
        softp4.native.NoCompilerError, softp4.native.CompileError: see softp4.native.build.
    """
    return _load(program_text(program, trace=trace), _FLAGS + _TRACED if trace else _FLAGS)


@functools.lru_cache(maxsize=16)
def _load(text: str, flags: tuple[str, ...]) -> Library:
    sources = sorted(RUNTIME.glob("*.c"))
    return Library(
        load_library(
            "softswitch",
            sources,
            extra={"program.c": text},
            include=[RUNTIME],
            flags=flags,
            signatures=SIGNATURES,
        )
    )


def text_name(program: Program, *, trace: bool = False) -> str:
    """Return the name of the file of a program's C text, in the cache or in a wheel."""
    name = hashlib.sha256(f"{program.digest} {generator_digest()}{' trace' * trace}".encode()).hexdigest()[
        :24
    ]
    return f"softswitch-{name}.c"


def program_text(program: Program, *, trace: bool = False) -> str:
    """Return the C text of a program, from a wheel, from the cache, or generated and put there."""
    name = text_name(program, trace=trace)
    if brought := packaged_file(name):
        return brought.read_text(encoding="utf-8")
    return kept(name, lambda: _generated(program, trace).encode()).decode()


def _generated(program: Program, trace: bool) -> str:
    # Its import takes its time, and only a first start needs it.
    from softp4.codegen.module import generate

    return generate(program, trace)
