# SPDX-License-Identifier: Apache-2.0
"""The journal: what was appended is there after a crash at any byte, and damage is not taken for one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.host_agent.parameter_server.journal import Journal, JournalError

_RECORDS = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


def _read(folder: Path) -> tuple[list[int], list[bytes]]:
    with Journal(folder) as journal:
        state: list[int] = []
        records: list[bytes] = []
        journal.replay(lambda checkpoint: state.extend(checkpoint["state"].tolist()), records.append)
        return state, records


def _written(folder: Path, records: list[bytes]) -> list[int]:
    """Write records to a new journal; return the size of it after each."""
    ends = []
    with Journal(folder) as journal:
        for record in records:
            journal.append(record)
            ends.append(journal.size)
    return ends


@given(_RECORDS, st.data())
@settings(deadline=None)
def test_a_torn_tail_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    ends = _written(folder, records)
    file = folder / "journal"
    cut = data.draw(st.integers(0, ends[-1]))
    file.write_bytes(file.read_bytes()[:cut])
    kept = sum(end <= cut for end in ends)
    assert _read(folder) == ([], records[:kept])
    with Journal(folder) as journal:
        journal.append(b"after")
    assert _read(folder) == ([], [*records[:kept], b"after"])


@given(_RECORDS, st.data())
@settings(deadline=None)
def test_a_damaged_byte_never_becomes_a_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    ends = _written(folder, records)
    file = folder / "journal"
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(bytes(content))
    whole = sum(end <= at for end in ends)
    if at < 8 or whole < len(records) - 1:
        with pytest.raises(JournalError):
            Journal(folder)
    else:
        assert _read(folder) == ([], records[:whole])


def test_a_checkpoint_contains_the_records_before_it(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(b"1")
        before = (tmp_path / "journal").read_bytes()
        journal.save({"state": np.array([1])})
        assert journal.size == 0
        journal.append(b"2")
        journal.append(b"3")
    assert _read(tmp_path) == ([1], [b"2", b"3"])
    after = (tmp_path / "journal").read_bytes()
    # a crash between the renaming and the emptying: the journal still has what the checkpoint contains
    (tmp_path / "journal").write_bytes(before)
    assert _read(tmp_path) == ([1], [])
    # a half-written checkpoint is not looked at, and does not stay
    (tmp_path / ".checkpoint.npz.77.77").write_bytes(b"PK half")
    (tmp_path / "journal").write_bytes(after)
    assert _read(tmp_path) == ([1], [b"2", b"3"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint.npz", "journal"]


def test_records_after_emptying_continue_the_numbers(tmp_path: Path) -> None:
    with Journal(tmp_path, sync=True) as journal:
        for number in range(3):
            journal.append(bytes([number]))
            journal.save({"state": np.array([number])})
    assert _read(tmp_path) == ([2], [])
    (tmp_path / "checkpoint.npz").unlink()
    assert _read(tmp_path) == ([], [])


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(b"1")
        journal.save({"state": np.array([1])})
        journal.append(b"2")
    (tmp_path / "checkpoint.npz").unlink()
    with pytest.raises(JournalError, match=r"record 2 after record 0"):
        Journal(tmp_path)


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.save({"state": np.arange(1000)})
    file = tmp_path / "checkpoint.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(JournalError, match="cannot be read"):
        Journal(tmp_path)


def test_one_server_to_a_folder(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(JournalError, match="another server"):
        Journal(tmp_path)
    Journal(tmp_path).close()
