# SPDX-License-Identifier: Apache-2.0
"""Files that others wait for or read at any time: they see a whole file, the old one or none."""

import contextlib
import os
import threading
from pathlib import Path


def write_atomically(path: Path, content: str | bytes | memoryview, mode: int = 0o666) -> None:
    """Write a draft beside ``path``, wait until the disk has it, then rename it.

    Args:
        content: of the file; text is written as UTF-8.
        mode: permissions of a file that is new, less the process's umask.

    Raises:
        OSError: the file cannot be written; ``path`` is as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # of a folder that may not be read; the file itself is there
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Wait until the disk knows the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
