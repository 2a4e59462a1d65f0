# SPDX-License-Identifier: Apache-2.0
"""From a loaded program to a loaded native library."""

import functools
from pathlib import Path
from typing import Final

from native.build import load_library
from softswitch.bindings import Library
from softswitch.codegen.module import generate
from softswitch.program_types import Program

RUNTIME: Final = Path(__file__).parent / "runtime"
# Generated code views register cells and packet bytes through pointers of several types.
_FLAGS: Final = ("-fno-strict-aliasing",)


@functools.lru_cache(maxsize=16)
def _library(digest: str, text: str) -> Library:
    sources = sorted(RUNTIME.glob("*.c"))
    return Library(
        load_library("softswitch", sources, extra={"program.c": text}, include=[RUNTIME], flags=_FLAGS)
    )


def load_switch_library(program: Program) -> Library:
    """Generates, compiles (or finds in the cache) and loads the code of a program.

    Raises:
        UnsupportedConstruct: the program computes something this switch cannot.
        native.build.NoCompilerError, native.build.CompileError: see native.build.
    """
    return _library(program.digest, generate(program))
