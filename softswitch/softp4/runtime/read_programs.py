# SPDX-License-Identifier: Apache-2.0
"""Programs that were read before, from the cache: a large one takes a second to read and check."""

import contextlib
import gc
import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path

from softp4.native.build import CompileError
from softp4.program.loader import parsed, text_of
from softp4.program.types import Program
from softp4.runtime.kept_files import generator_digest, kept


def read_program(source: Path | bytes) -> Program:
    """Read a program as ``load_program`` does, with its errors; from the cache, if it was read before."""
    data, name = text_of(source)
    key = hashlib.sha256(data + generator_digest().encode()).hexdigest()[:24]
    with _without_collections():
        try:
            content = kept(f"program-{key}.pickle", lambda: pickle.dumps(parsed(data, name)))
        except CompileError:  # there can be no cache: loading the compiled code says so
            return parsed(data, name)
        program = pickle.loads(content)  # as trusted as the compiled code beside it, which is run
    assert isinstance(program, Program)
    return program


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector off the objects that are made: none of them is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
