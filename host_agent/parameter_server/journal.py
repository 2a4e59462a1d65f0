# SPDX-License-Identifier: Apache-2.0
"""A server's memory on disk: a journal of what it did, and now and then a checkpoint of its state.

A record is in the journal before anybody sees an effect of it. After a crash the state is that of the
checkpoint, and of the journal's records behind it, played again in order.

- A checkpoint is written beside the old one, synced, and renamed over it: one of the two is always whole. It
  says how many records it contains, so that it does not matter when the journal is emptied after it. It ends
  with a CRC-32 of all bytes before, in the comment that the format of npz files, zip, has at its end.
- A record has its number, its length and a CRC-32. What a crash left half written, at the end, was
  acknowledged to nobody: it is cut off. Damage with whole records behind it is another matter, and an error.
- Records are given to the kernel at once, so a process that is killed loses none. With ``sync`` they are on
  the disk before ``append`` returns, so that a machine that loses power does not, either; without it, a power
  failure may cost the records since the last checkpoint, or since the kernel last wrote.
"""

import errno
import fcntl
import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from softp4.native.files import write_atomically

Arrays = dict[str, npt.NDArray[Any]]


def under(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


_MAGIC: Final = b"weirjrn2"
_HEAD: Final = struct.Struct("<QII")  # number, length, CRC-32 of number, length and data
_NUMBER: Final = "records"
_SEAL: Final = b"weir checkpoint 1, CRC-32 "
_SEAL_BYTES: Final = len(_SEAL) + 8  # as hexadecimal digits
_COMMENT_AT: Final = 20
_ZIP_END_BYTES: Final = 22
"""At the end of a zip file without a comment; at _COMMENT_AT of them is the length of one."""

_MISFITS: Final = (AssertionError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""Errors that a state machine raises for what is no state of its own."""


class JournalError(Exception):
    """A folder with a server's state cannot be used. Says which file, and what to do."""


class JournalInUseError(JournalError):
    """Another process has the folder open."""


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
        """Open a folder, which is made if need be.

        Raises:
            JournalInUseError: another process has it open.
            JournalError: it cannot be used, or what is in it is damaged.
        """
        self._folder, self._sync = folder, sync
        self._path, self._saved = folder / "journal", folder / "checkpoint.npz"
        self._file = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for draft in folder.glob(f".{self._saved.name}.*"):  # of a process that was killed
                draft.unlink()
            self._checkpoint = self._load()
            self._contained = 0 if self._checkpoint is None else int(self._checkpoint.pop(_NUMBER)[0])
            self._last, self._whole = self._check()
            os.ftruncate(self._file, self._whole)
        except BlockingIOError:
            self.close()
            raise JournalInUseError(f"{folder} is in use by another server: give this one its own") from None
        except OSError as error:
            self.close()
            raise JournalError(f"{error.filename or folder} cannot be used: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Return bytes of the journal."""
        return self._whole

    def replay(self, load: Callable[[Arrays], object], apply: Callable[[bytes], object]) -> None:
        """Give the checkpoint, if there is one, to ``load``, then each record behind it to ``apply``.

        To be called once, before anything is appended.

        Raises:
            JournalError: either of them raised an error: what they were given is no state of theirs.
        """
        checkpoint, self._checkpoint = self._checkpoint, None
        file = self._saved
        try:
            if checkpoint is not None:
                load(checkpoint)
            file = self._path
            for number, data in _parse(self._path.read_bytes()):
                if number > self._contained:
                    apply(data)
        except _MISFITS as error:
            raise JournalError(
                f"{file} is not the state of this server ({_words(error)}): give this job a folder of its own"
            ) from error

    def append(self, data: bytes) -> None:
        """Keep a record. JournalError, and then nothing of it is kept, when the disk does not take it."""
        head = _HEAD.pack(self._last + 1, len(data), _crc(self._last + 1, data))
        record = (_MAGIC if not self._whole else b"") + head + data
        try:
            if os.write(self._file, record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._sync:
                os.fdatasync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._whole)
            raise self._unwritten(self._path, error) from error
        self._last += 1
        self._whole += len(record)

    def save(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace the checkpoint by one of all records so far, and empty the journal.

        Raises:
            JournalError: the disk does not take it; the old checkpoint and the journal are as they were.
        """
        try:
            write_atomically(self._saved, _sealed({_NUMBER: np.array([self._last]), **arrays}))
        except OSError as error:
            raise self._unwritten(self._saved, error) from error
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

    def _unwritten(self, path: Path, error: OSError) -> JournalError:
        return JournalError(
            f"{path} cannot be written: {error.strerror}; make room for it and start the server again with "
            "the same folder: it goes on where it was"
        )

    def _load(self) -> Arrays | None:
        try:
            return _unsealed(self._saved.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise JournalError(
                f"{self._saved} cannot be read ({error}): restore it from a copy, or remove the folder to "
                f"start from nothing"
            ) from error

    def _check(self) -> tuple[int, int]:
        """Return the number of the last record, and the bytes that whole records take."""
        content = self._path.read_bytes()
        if not content.startswith(_MAGIC) and not _MAGIC.startswith(content):
            raise JournalError(
                f"{self._path} is not a journal of this version of Weir: give the server a folder of its own"
            )
        last, whole = self._contained, 0
        for number, data in _parse(content):
            if number > last + 1:
                raise JournalError(
                    f"{self._path} has record {number} after record {last}: it does not belong to "
                    f"{self._saved.name} beside it; restore both from one copy"
                )
            last = max(last, number)
            whole = (whole or len(_MAGIC)) + _HEAD.size + len(data)
        if _holds(content, whole, last + 2):
            raise JournalError(
                f"{self._path} is damaged at byte {whole}, before intact records: restore the folder "
                "from a copy"
            )
        return last, whole


def _sealed(arrays: Mapping[str, npt.NDArray[Any]]) -> memoryview:
    """Return an npz file of these arrays whose comment is a checksum of the rest."""
    memory = io.BytesIO()
    np.savez(memory, allow_pickle=False, **arrays)
    memory.seek(_COMMENT_AT - _ZIP_END_BYTES, os.SEEK_END)
    memory.write(struct.pack("<H", _SEAL_BYTES) + _SEAL)
    memory.write(_digits(memory.getbuffer()))
    return memory.getbuffer()


def _unsealed(content: bytes) -> Arrays:
    """Return the arrays of a file that ``_sealed`` made. Raises ValueError for any other."""
    body, digits = memoryview(content)[:-8], content[-8:]
    if not content[:-8].endswith(_SEAL):
        raise ValueError("it has no checksum as this version of Weir writes it: damage, or another version")
    if digits != _digits(body):
        raise ValueError("its checksum does not fit: it is damaged")
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _digits(data: memoryview) -> bytes:
    return f"{zlib.crc32(data):08x}".encode()


def _words(error: BaseException) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)


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
