# SPDX-License-Identifier: Apache-2.0
"""From a loaded program to a loaded native library.

Both steps are cached on disk, by content: the C text by the program and this package's own sources, the
compiled library (native.build) by the C text, so that a second start only reads files.
"""

import functools
import hashlib
from pathlib import Path
from typing import Final

from weir.native.build import cache_dir, load_library
from weir.native.files import write_atomically
from weir.softswitch.bindings import Library
from weir.softswitch.program.types import Program

RUNTIME: Final = Path(__file__).parent / "runtime"
# Generated code views register cells and packet bytes through pointers of several types.
_FLAGS: Final = ("-fno-strict-aliasing",)


_TRACED: Final = ("-O1",)  # code with tracepoints is long and need not be fast


def load_switch_library(program: Program, *, trace: bool = False) -> Library:
    """Generates, compiles (or finds in the cache) and loads the code of a program.

    With `trace`, its code with tracepoints, for `Library.start_trace` of the plain one.

    Raises:
        UnsupportedConstruct: the program computes something this switch cannot.
        native.build.NoCompilerError, native.build.CompileError: see native.build.
    """
    return _load(_text(program, trace), _FLAGS + _TRACED if trace else _FLAGS)


@functools.lru_cache(maxsize=16)
def _load(text: str, flags: tuple[str, ...]) -> Library:
    sources = sorted(RUNTIME.glob("*.c"))
    return Library(
        load_library("softswitch", sources, extra={"program.c": text}, include=[RUNTIME], flags=flags)
    )


def _text(program: Program, trace: bool) -> str:
    """Return the C text of a program: from the cache, or generated and put there."""
    name = hashlib.sha256(f"{program.digest} {_generator()}{' trace' * trace}".encode()).hexdigest()[:24]
    path = cache_dir() / f"softswitch-{name}.c"
    try:
        return path.read_text()
    except OSError:
        from weir.softswitch.codegen.module import (
            generate,  # which takes its time, and only a first start needs
        )

        text = generate(program, trace)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return text


@functools.cache
def _generator() -> str:
    """Hash of the sources that decide what C text a program becomes."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*(package / "program").glob("*.py"), *(package / "codegen").glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()
