# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: a file of each rank, and one that says which belong together and are whole.

.. code-block:: text

    RUN/checkpoints/weir/latest.json          the step, and the checksum of each file
    RUN/checkpoints/weir/step-120/rank-0.pt   model, optimizer, what the method keeps, random numbers
"""

import hashlib
import io
import json
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from softp4.native.files import write_atomically
from softp4.native.json_text import parse_object

FOLDER: Final = "checkpoints"
_LATEST: Final = "latest.json"
_SCHEMA: Final = 1


class CheckpointError(Exception):
    """A checkpoint cannot be written or used. The message names the file and says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: a run's folder of them, the step after which it was made, its files' checksums."""

    folder: Path
    step: int
    checksums: tuple[str, ...]

    def part(self, rank: int) -> dict[str, Any]:
        """Return what a rank saved. Raises CheckpointError when its file is not as it was written."""
        import torch  # by the workers alone

        path, data = _file(self.folder, self.step, rank), self._whole(rank)
        try:
            found: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise CheckpointError(f"{path} cannot be loaded: {error}") from None
        return found

    def check(self, workers: int) -> None:
        """Raise CheckpointError unless all files of this many workers are there, as they were written."""
        if len(self.checksums) != workers:
            raise CheckpointError(
                f"{self.folder / _LATEST}: it has {len(self.checksums)} workers, not {workers}"
            )
        for rank in range(workers):
            self._whole(rank)

    def _whole(self, rank: int) -> bytes:
        """Return a rank's file. Raises CheckpointError when it is not as it was written."""
        path = _file(self.folder, self.step, rank)
        if rank >= len(self.checksums):
            raise CheckpointError(f"{self.folder / _LATEST}: it has {len(self.checksums)} workers, not more")
        data = _read(path)
        if hashlib.sha256(data).hexdigest() != self.checksums[rank]:
            raise CheckpointError(f"{path} is damaged: its checksum differs")
        return data


def write_part(folder: Path, step: int, rank: int, state: dict[str, Any]) -> None:
    """Write what a rank saves. Raises CheckpointError."""
    import torch

    path, data = _file(folder, step, rank), io.BytesIO()
    torch.save(state, data)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data.getvalue())
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from None


def publish(folder: Path, step: int, workers: int) -> None:
    """Make the checkpoint of a step, whose parts are all written, the latest one; remove those before it.

    Raises CheckpointError.
    """
    checksums = [hashlib.sha256(_read(_file(folder, step, rank))).hexdigest() for rank in range(workers)]
    latest = {"schema": _SCHEMA, "step": step, "checksums": checksums}
    try:
        write_atomically(folder / _LATEST, json.dumps(latest, indent=2) + "\n")
    except OSError as error:
        raise CheckpointError(f"cannot write {folder / _LATEST}: {error.strerror}") from None
    for old in folder.glob("step-*"):
        if old != _file(folder, step, 0).parent:
            shutil.rmtree(old, ignore_errors=True)


def has_checkpoint(folder: Path) -> bool:
    """Return whether a whole checkpoint has been written to a folder."""
    return (folder / _LATEST).exists()


def latest(folder: Path) -> Checkpoint:
    """Return the latest checkpoint of a run. Raises CheckpointError when there is none that can be used."""
    path = folder / _LATEST
    if not has_checkpoint(folder):
        raise CheckpointError(f"{folder} has no checkpoint: weir train --set save_every=STEPS writes them")
    try:
        said = parse_object(_read(path))
        step, checksums = said["step"], said["checksums"]
        sound = said["schema"] == _SCHEMA and type(step) is int and step > 0 and isinstance(checksums, list)
    except (ValueError, KeyError):
        sound = False
    if not sound or not checksums or not all(isinstance(each, str) for each in checksums):
        raise CheckpointError(f"{path} is not a list of a checkpoint's files")
    return Checkpoint(folder, step, tuple(checksums))


def _file(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step-{step}" / f"rank-{rank}.pt"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
