# SPDX-License-Identifier: Apache-2.0
"""The folder of a run, and the files that every kind of run leaves in it."""

import contextlib
import importlib.metadata
import json
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from softp4.native.files import write_atomically


class FolderError(Exception):
    """A run's folder or a file in it cannot be written. The message says which and why."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise FolderError for an OSError in the block, which writes ``path``."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error.strerror or error}") from error


class StepsFile:
    """steps.jsonl: a line of JSON for every step, in the file as soon as it is written.

    Its methods raise FolderError.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "steps.jsonl"
        with writing(self._path):
            self._file = self._path.open("wb", buffering=0)  # closing has nothing left to write

    def write(self, step: Mapping[str, Any]) -> None:
        """Add a line."""
        line = memoryview(f"{json.dumps(step)}\n".encode())
        with writing(self._path):
            while line:
                line = line[self._file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        with writing(self._path):
            self._file.close()


def make_folder(out: Path, name: str, config: Mapping[str, Any]) -> Path:
    """Return a new folder <out>/<time>-<name>, with ``config`` and the versions of packages in its
    config.json.

    Raises FolderError when there can be none.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for count in range(1, 1000):
        folder = out / (stem if count == 1 else f"{stem}-{count}")
        try:
            with writing(folder):
                folder.mkdir(parents=True)
        except FolderError as error:
            if folder.exists():
                continue
            raise error from None
        try:
            write_json(folder / "config.json", {**config, "versions": versions()})
        except FolderError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder
    raise FolderError(f"cannot write {out / stem}: it and 998 like it are there already")


def versions() -> dict[str, str]:
    """Return the versions of what trains."""
    return {
        "weir": importlib.metadata.version("weir-ina"),
        **{name: importlib.metadata.version(name) for name in ("torch", "numpy")},
        "python": platform.python_version(),
    }


def write_json(path: Path, value: object) -> None:
    """Write a file of indented JSON.

    Raises FolderError; ValueError for NaN and infinity, which JSON does not have.
    """
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with writing(path):
        write_atomically(path, text)
