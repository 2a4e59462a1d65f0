# SPDX-License-Identifier: Apache-2.0
"""A reader of a file sees a whole one; a write that fails leaves things as they were."""

import threading
from pathlib import Path

import pytest

from softp4.native.files import write_atomically


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    path, done = tmp_path / "file", threading.Event()
    texts = {"a" * 100_000, "b" * 200_000}
    write_atomically(path, "a" * 100_000)
    seen: set[str] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        for text in texts:
            write_atomically(path, text)
    done.set()
    reader.join()
    assert seen <= texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_permissions_are_those_asked_for(tmp_path: Path) -> None:
    write_atomically(tmp_path / "secret", "token", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\udc80")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
