# SPDX-License-Identifier: Apache-2.0
"""Files of the cache that are made of a program: made once, and read at later starts.

A file that is damaged, or that another user could have written, is made again.
"""

import contextlib
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from softp4.native.build import cache_folder
from softp4.native.files import write_atomically
from softp4.native.ownership import read_trusted

_ROOMS: Final = ("program", "codegen")  # they decide what a program becomes


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file of the cache, or make it and put it there.

    Raises:
        softp4.native.CompileError: there can be no cache.
    """
    with cache_folder() as cache:
        path = cache / name
        if (content := _read(path)) is not None:
            return content
        content = make()
        with contextlib.suppress(OSError):  # the compiled library, which cannot be kept either, says so
            write_atomically(path, _headed(content), 0o644)
        return content


def _headed(content: bytes) -> bytes:
    """Return a content below a line with its digest."""
    return f"// {hashlib.sha256(content).hexdigest()}\n".encode() + content


def _read(path: Path) -> bytes | None:
    """Return the content that was written to a file of the cache; None when it is not there, or damaged, or
    when somebody else could have written it.
    """
    try:
        found = read_trusted(path)
    except OSError:
        return None
    content = found.partition(b"\n")[2]
    return content if found == _headed(content) else None


def generator_sources() -> list[Path]:
    """Return the sources that decide what a program becomes: every module of the rooms that do so."""
    package = Path(__file__).resolve().parents[1]
    return sorted(path for room in _ROOMS for path in (package / room).rglob("*.py"))


@functools.cache
def generator_digest() -> str:
    """Return the digest of these sources."""
    digest = hashlib.sha256()
    for path in generator_sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()
