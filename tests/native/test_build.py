# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from native import build

SOURCE = {"answer.c": "int answer(void) { return ANSWER; }"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path / "cache"))


def test_compiles_once_and_again_when_the_text_or_a_flag_changes() -> None:
    first = build.build_library("t", extra=SOURCE, flags=["-DANSWER=41"])
    assert build.build_library("t", extra=SOURCE, flags=["-DANSWER=41"]) == first
    assert build.build_library("t", extra=SOURCE, flags=["-DANSWER=42"]) != first
    assert build.load_library("t", extra=SOURCE, flags=["-DANSWER=42"]).answer() == 42


def test_a_changed_header_is_another_library(tmp_path: Path) -> None:
    (tmp_path / "n.h").write_text("#define N 1\n")
    source = {"n.c": '#include "n.h"\nint n(void) { return N; }'}
    assert build.load_library("n", extra=source, include=[tmp_path]).n() == 1
    (tmp_path / "n.h").write_text("#define N 2\n")
    assert build.load_library("n", extra=source, include=[tmp_path]).n() == 2


def test_a_compile_error_is_shown() -> None:
    with pytest.raises(build.CompileError, match="error"):
        build.build_library("bad", extra={"bad.c": "int f( {"})


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    build.compiler.cache_clear()
    try:
        with pytest.raises(build.NoCompilerError, match="pip install ziglang"):
            build.build_library("none", extra=SOURCE)
    finally:
        build.compiler.cache_clear()
