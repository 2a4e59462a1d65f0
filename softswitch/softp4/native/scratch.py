# SPDX-License-Identifier: Apache-2.0
"""Folders that live as long as a process does: locked, so that what a killed one left can be told apart."""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ENDING: Final = r"-[a-z]+\.[a-z0-9_]{8}"


@contextlib.contextmanager
def scratch_folder(name: str, parent: Path | str | None = None) -> Iterator[Path]:
    """Yield a new folder ``NAME.XXXXXXXX`` of mode 0700, which goes with the block.

    Args:
        name: two words in small letters with a hyphen between them, the first one the owner's.
        parent: where; by default among the temporary files.
    """
    draft = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
    lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = draft.with_name(draft.name[1:])
    try:
        with contextlib.suppress(OSError):  # a file system without locks; then ``abandoned`` finds nothing
            fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(folder)  # nobody has seen it without its lock
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def abandoned(parent: Path, *owners: str) -> list[Path]:
    """Return this user's scratch folders of some owners in ``parent`` whose process has ended."""
    name = re.compile(f"(?:{'|'.join(map(re.escape, owners))}){_ENDING}")
    try:
        return [path for path in sorted(parent.iterdir()) if name.fullmatch(path.name) and is_free(path)]
    except OSError:
        return []


def is_locked(path: Path) -> bool:
    """Tell whether some process, of whichever user, holds a lock on a folder or file."""
    with _opened(path) as lock:
        if lock is None:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False


def is_free(path: Path) -> bool:
    """Tell whether a folder or file is this user's and no process holds a lock on it."""
    with _opened(path) as lock:
        if lock is None:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(lock).st_uid == os.getuid()
        except OSError:
            return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Yield the descriptor of a folder or file, closed afterwards; None where it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
