# SPDX-License-Identifier: Apache-2.0
"""The cache of programs returns what was read before, and trusts no other user's files."""

import json
from pathlib import Path

import pytest

from softp4.codegen.module import generate
from softp4.program.errors import ProgramError
from softp4.program.loader import load_program
from softp4.runtime import read_programs
from softp4.runtime.read_programs import read_program
from tests.p4rt.p4rt_client import CONTROL


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTP4_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_second_start_does_not_read_the_program_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_program(CONTROL)
    monkeypatch.delattr(read_programs, "parsed")
    again = read_program(CONTROL.read_bytes())
    assert first == again == load_program(CONTROL)
    assert generate(again, False) == generate(load_program(CONTROL), False)


def test_another_program_or_another_reader_is_another_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_program(CONTROL)
    other = json.loads(CONTROL.read_bytes())
    other["__meta__"]["compiler"] = "another"
    read_program(json.dumps(other).encode())
    monkeypatch.setattr(read_programs, "generator_digest", lambda: "another")
    read_program(CONTROL)
    assert len(list(cache.iterdir())) == 3


def test_a_file_that_is_damaged_or_that_others_can_write_is_made_again(cache: Path) -> None:
    read_program(CONTROL)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for spoilt in (whole[: len(whole) // 2], b"cos\nsystem\n(S'false'\ntR."):
        kept.write_bytes(spoilt)
        assert read_program(CONTROL) == load_program(CONTROL)
        assert kept.read_bytes() == whole
    kept.chmod(0o666)
    read_program(CONTROL)
    assert kept.stat().st_mode & 0o022 == 0


def test_without_a_cache_programs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOFTP4_CACHE", str(tmp_path / "file"))
    assert read_program(CONTROL) == load_program(CONTROL)


def test_what_is_no_program_is_refused_by_its_name_each_time(cache: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for source, name in ((wrong, str(wrong)), (wrong, str(wrong)), (b"{}", "the program")):
        with pytest.raises(ProgramError, match=name):
            read_program(source)
    assert not list(cache.iterdir())
