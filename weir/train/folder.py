# SPDX-License-Identifier: Apache-2.0
"""The folder of a run, and the files that every kind of run leaves in it."""

import importlib.metadata
import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.native.files import write_atomically


def make_folder(out: Path, name: str, config: Mapping[str, Any]) -> Path:
    """Return a new folder <out>/<time>-<name>, with ``config`` and the versions of packages in its
    config.json.

    Raises OSError when there can be none.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for count in range(1, 1000):
        folder = out / (stem if count == 1 else f"{stem}-{count}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        versions = {
            "weir": importlib.metadata.version("weir-ina"),
            **{name: importlib.metadata.version(name) for name in ("torch", "numpy")},
            "python": platform.python_version(),
        }
        write_json(folder / "config.json", {**config, "versions": versions})
        return folder
    raise FileExistsError(f"{out / stem} and 998 like it are there already")


def write_json(path: Path, value: object) -> None:
    """Write a file of indented JSON. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
