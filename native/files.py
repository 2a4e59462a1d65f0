# SPDX-License-Identifier: Apache-2.0
"""Files that others wait for or read at any time: they see a whole file, the old one or none."""

import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Write ``text`` to a draft beside ``path``, then rename it.

    Args:
        mode: permissions of a file that is new, less the process's umask.

    Raises:
        OSError: the file cannot be written; ``path`` is as it was.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
