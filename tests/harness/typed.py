# SPDX-License-Identifier: Apache-2.0
"""What a page has its reader save and type, and a shell that types it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.harness.source import source_path

TIMEOUT_S: Final = 240.0


def blocks(page: Path, language: str = "sh") -> list[str]:
    """Return a page's blocks of a language; those of ``sh`` are what it has typed."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def saved(page: Path) -> dict[str, str]:
    """Return the Python files that a page has saved, by name: ``Save this as `train.py`:``, then a block."""
    pattern = r"[Ss]ave (?:this|it) as\s+`([\w.]+)`:\n\n```python\n(.*?)^```$"
    return dict(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def types(typed: str, folder: Path, *, before: Sequence[Path] = ()) -> str:
    """Run what a person types in a folder with the environment of this Python activated.

    Args:
        typed: lines of a shell. The first command that fails ends them.
        folder: where they run.
        before: folders of commands that are found first.

    Returns:
        What the commands print.
    """
    path = [*map(str, before), str(Path(sys.executable).parent), os.environ["PATH"]]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    with tempfile.TemporaryFile("w+") as said:
        shell = subprocess.Popen(
            ["sh", "-ec", typed],
            cwd=folder,
            env={**kept, "PATH": os.pathsep.join(path), "PYTHONPATH": source_path()},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = shell.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # also what the shell left in the background
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        said.seek(0)
        text = said.read()
    assert status == 0, text
    return text
