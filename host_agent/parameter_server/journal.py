# SPDX-License-Identifier: Apache-2.0
"""A server's memory on disk: a journal of what it did, and now and then a checkpoint of its state.

A record is in the journal before anybody sees an effect of it. After a crash the state is that of the
checkpoint, and of the journal's records behind it, played again in order.

- A checkpoint is written beside the old one, synced, and renamed over it: one of the two is always whole. It
  says how many records it contains, so that it does not matter when the journal is emptied after it.
- A record has its number, its length and a CRC-32. What a crash left half written, at the end, was
  acknowledged to nobody: it is cut off. Damage with whole records behind it is another matter, and an error.
- Records are given to the kernel at once, so a process that is killed loses none. With ``sync`` they are on
  the disk before ``append`` returns, so that a machine that loses power does not, either; without it, a power
  failure may cost the records since the last checkpoint, or since the kernel last wrote.
"""

import fcntl
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

_MAGIC: Final = b"weirjrn1"
_HEAD: Final = struct.Struct("<QII")  # number, length, CRC-32 of number, length and data
_NUMBER: Final = "records"


class JournalError(Exception):
    """A folder with a server's state cannot be used. Says which file, and what to do."""


class Journal:
    """A folder with a checkpoint and the records behind it; one process at a time has it open.

    Example::

        with Journal(folder) as journal:
            journal.replay(state.load, state.apply)
            ...
            journal.append(record)          # before anybody sees what follows from it
            if journal.size > limit:
                journal.save(state.arrays())
    """

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        """Open a folder, which is made if need be. Raises JournalError when another process has it open."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._sync = folder, sync
        self._path, self._saved = folder / "journal", folder / "checkpoint.npz"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._checkpoint = self._load()
            self._contained = 0 if self._checkpoint is None else int(self._checkpoint.pop(_NUMBER)[0])
            self._last, self._whole = self._check()
            os.ftruncate(self._file, self._whole)
        except BlockingIOError:
            os.close(self._file)
            raise JournalError(f"{folder} is in use by another server: give this one its own") from None
        except BaseException:
            os.close(self._file)
            raise

    @property
    def size(self) -> int:
        """Return bytes of the journal."""
        return self._whole

    def replay(self, load: Callable[[Arrays], object], apply: Callable[[bytes], object]) -> None:
        """Give the checkpoint, if there is one, to ``load``, then each record behind it to ``apply``.

        To be called once, before anything is appended.
        """
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            load(checkpoint)
        for number, data in _parse(self._path.read_bytes()):
            if number > self._contained:
                apply(data)

    def append(self, data: bytes) -> None:
        """Keep a record. OSError, and then nothing of it is kept, when the disk does not take it."""
        head = _HEAD.pack(self._last + 1, len(data), _crc(self._last + 1, data))
        record = (_MAGIC if not self._whole else b"") + head + data
        try:
            if os.write(self._file, record) != len(record):
                raise OSError(f"{self._path}: the disk is full")
            if self._sync:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._whole)
            raise
        self._last += 1
        self._whole += len(record)

    def save(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace the checkpoint by one of all records so far, and empty the journal."""
        memory = io.BytesIO()
        np.savez(memory, allow_pickle=False, **{_NUMBER: np.array([self._last])}, **arrays)
        fresh = self._saved.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(memory.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._saved)
        directory = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._contained = self._last
        os.ftruncate(self._file, 0)
        self._whole = 0

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> Arrays | None:
        try:
            with np.load(self._saved, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
        except FileNotFoundError:
            return None
        except (ValueError, OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
            raise JournalError(
                f"{self._saved} cannot be read ({error}): restore it from a copy, or remove the folder to "
                "begin anew"
            ) from error

    def _check(self) -> tuple[int, int]:
        """Return the number of the last record, and the bytes that whole records take."""
        content = self._path.read_bytes()
        if not content.startswith(_MAGIC) and not _MAGIC.startswith(content):
            raise JournalError(f"{self._path} is not a journal: give the server a folder of its own")
        last, whole = self._contained, 0
        for number, data in _parse(content):
            if number > last + 1:
                raise JournalError(
                    f"{self._path} goes on with record {number} after {last}: it does not belong to "
                    f"{self._saved.name} beside it; restore both from one copy"
                )
            last = max(last, number)
            whole = (whole or len(_MAGIC)) + _HEAD.size + len(data)
        if _holds(content, whole, last + 2):
            raise JournalError(
                f"{self._path} is damaged at byte {whole}, with whole records behind: restore the folder "
                "from a copy"
            )
        return last, whole


def _parse(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and data of the whole records at the beginning."""
    if not content.startswith(_MAGIC):
        return
    at = len(_MAGIC)
    while found := _record(content, at):
        yield found
        at += _HEAD.size + len(found[1])


def _record(content: bytes, at: int) -> tuple[int, bytes] | None:
    """Return number and data of the record at a place, if it is whole."""
    if len(content) < at + _HEAD.size:
        return None
    number, length, crc = _HEAD.unpack_from(content, at)
    data = content[at + _HEAD.size : at + _HEAD.size + length]
    return (number, data) if len(data) == length and crc == _crc(number, data) else None


def _crc(number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_HEAD.pack(number, len(data), 0)))


def _holds(content: bytes, start: int, number: int) -> bool:
    """Return whether the whole record of a number is anywhere behind ``start``."""
    mark = struct.pack("<Q", number)
    at = content.find(mark, start)
    while at >= 0:
        if _record(content, at):
            return True
        at = content.find(mark, at + 1)
    return False
