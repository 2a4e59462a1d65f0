# SPDX-License-Identifier: Apache-2.0
import os
import platform
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from softp4.native import build
from tests.harness.confined import run_on_small_disk

SOURCE = {"answer.c": "int answer(void) { return ANSWER; }"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTP4_CACHE", str(tmp_path / "cache"))


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


def test_a_compiler_without_a_c_library_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's gcc only recommends the package of its headers."""
    (tmp_path / "cc").write_text("#!/bin/sh\necho crti.o\n")  # what gcc says of a file that it does not find
    (tmp_path / "gcc").write_text(f"#!/bin/sh\necho {tmp_path}/crti.o\n")
    for name in ("cc", "gcc"):
        (tmp_path / name).chmod(0o700)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    build.compiler.cache_clear()
    try:
        assert build.compiler() == (str(tmp_path / "gcc"),)
    finally:
        build.compiler.cache_clear()


def test_processes_that_start_together_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "compiled"
    wrapper = tmp_path / "cc"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo x >> {log}; sleep 0.5;; esac\n'
        f'exec {shlex.join(build.compiler())} "$@"\n'
    )
    wrapper.chmod(0o700)
    build.compiler.cache_clear()
    monkeypatch.setenv("CC", str(wrapper))
    script = (
        "from softp4.native import build\n"
        "build.build_library('t', extra={'t.c': 'int t(void) { return 1; }'})"
    )
    try:
        running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
        assert [process.wait(60) for process in running] == [0, 0, 0]
    finally:
        build.compiler.cache_clear()
    assert log.read_text().split() == ["x"]


def test_what_libraries_have_in_common_is_compiled_once(tmp_path: Path) -> None:
    common = tmp_path / "common.c"
    common.write_text("int one(void) { return 1; }")
    first = build.load_library(
        "t", [common], extra={"t.c": "int one(void); int t(void) { return one() + 1; }"}
    )
    objects = {path: path.stat().st_mtime_ns for path in build.cache_dir().glob("common-*.o")}
    assert len(objects) == 1
    second = build.load_library(
        "t", [common], extra={"t.c": "int one(void); int t(void) { return one() + 2; }"}
    )
    assert (first.t(), second.t()) == (2, 3)
    assert {path: path.stat().st_mtime_ns for path in build.cache_dir().glob("common-*.o")} == objects
    common.write_text("int one(void) { return 5; }")
    third = build.load_library(
        "t", [common], extra={"t.c": "int one(void); int t(void) { return one() + 2; }"}
    )
    assert third.t() == 7


def test_the_unit_that_does_not_compile_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.c").write_text("int good(void) { return 1; }")
    (tmp_path / "bad.c").write_text("int bad(void) { return nothing; }")
    with pytest.raises(build.CompileError, match=r"bad\.c.*nothing"):
        build.build_library("t", [tmp_path / "good.c", tmp_path / "bad.c"])
    assert not list(build.cache_dir().glob("bad-*.o"))


@pytest.mark.parametrize("spoil", ["emptied", "cut", "zeroed"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, spoil: str) -> None:
    """Power fails, a disk runs full: processes after that start as ever. Half a library could kill them."""
    (tmp_path / "one.c").write_text("int one(void) { return 1; }")
    script = f"""
from pathlib import Path
from softp4.native import build
text = "int one(void); int t(void) {{ return one() + 1; }}"
assert build.load_library("t", [Path({str(tmp_path / "one.c")!r})], extra={{"t.c": text}}).t() == 2
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = [*build.cache_dir().glob("*.so"), *build.cache_dir().glob("*.o")]
        assert len(files) == 2
        for path in files:
            content = path.read_bytes()
            half = content[: len(content) // 2]
            path.write_bytes({"emptied": b"", "cut": half, "zeroed": half + bytes(len(half))}[spoil])


def test_without_a_compiler_a_filled_cache_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made = build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"])
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    build.compiler.cache_clear()
    build._compiler_digest.cache_clear()
    try:
        assert build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"]) == made
        with pytest.raises(build.NoCompilerError):
            build.build_library("t", extra=SOURCE, flags=["-DANSWER=2"])
    finally:
        build.compiler.cache_clear()
        build._compiler_digest.cache_clear()


@pytest.mark.root
def test_a_cache_on_a_full_disk_is_named(tmp_path: Path) -> None:
    script = """
import sys
from softp4.native import build
try:
    build.build_library("t", extra={"t.c": "char text[1 << 20] = {1};"})
except build.CompileError as error:
    sys.exit(str(error))
"""
    command = ["env", f"SOFTP4_CACHE={tmp_path}", sys.executable, "-c", script]
    done = run_on_small_disk(tmp_path, 64 << 10, command)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["/proc/softp4", "/dev/null/softp4"])
def test_a_cache_that_cannot_be_made_is_named_with_what_to_set(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOFTP4_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    with pytest.raises(
        build.CompileError, match=f"cannot keep compiled code in {place}.*Set SOFTP4_CACHE to"
    ):
        build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"])


@pytest.mark.root
def test_so_is_one_that_cannot_be_written_to(tmp_path: Path) -> None:
    script = """
import os, sys
from softp4.native import build
try:
    build.build_library("t", extra={"t.c": "int t;"})
except build.CompileError as error:
    sys.exit(str(error))
"""
    command = ["sh", "-c", 'mount -o remount,ro "$0" && exec "$@"', tmp_path]
    command += ["env", f"SOFTP4_CACHE={tmp_path}", sys.executable, "-c", script]
    done = run_on_small_disk(tmp_path, 1 << 20, command)
    assert done.stderr.startswith(f"cannot keep compiled code in {tmp_path}: Read-only file system")
    assert "Set SOFTP4_CACHE to" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.root
def test_so_is_the_want_of_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has a number and no name."""
    for name in ("SOFTP4_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(build.CompileError, match=r"no folder for compiled code.*Set SOFTP4_CACHE to"):
        build.cache_dir()


def test_what_is_made_is_for_this_user_to_write_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        build.build_library("t", [Path(build.__file__).with_name("ring_api.c")])
    finally:
        os.umask(before)
    made = [build.cache_dir(), *build.cache_dir().iterdir()]
    assert len(made) == 3
    assert [oct(path.stat().st_mode & 0o022) for path in made] == [oct(0)] * 3


FOREIGN = {"foreign.c": "int answer(void) { return 666; }"}


def plant(target: Path) -> None:
    """Put foreign code, as whole as ours, in the place of a library."""
    source = build.build_library("foreign", extra=FOREIGN)
    target.write_bytes(source.read_bytes())


@pytest.mark.root
@pytest.mark.parametrize("spoil", ["its owner", "its mode"])
def test_a_library_that_another_user_could_have_written_is_made_again(spoil: str) -> None:
    target = build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"])
    plant(target)
    if spoil == "its owner":
        os.chown(target, 65534, 65534)
    else:
        target.chmod(0o777)
    assert build.load_library("t", extra=SOURCE, flags=["-DANSWER=1"]).answer() == 1
    assert target.stat().st_uid == 0 and target.stat().st_mode & 0o022 == 0


@pytest.mark.root
def test_so_is_an_object_that_is_to_be_a_part_of_one(tmp_path: Path) -> None:
    (tmp_path / "part.c").write_text("int part(void) { return 1; }")
    build.build_library("one", [tmp_path / "part.c"], extra={"a.c": "int a;"})
    (tmp_path / "foreign.c").write_text("int part(void) { return 666; }")
    build.build_library("two", [tmp_path / "foreign.c"])
    (part,), (foreign,) = (build.cache_dir().glob(f"{name}-*.o") for name in ("part", "foreign"))
    part.write_bytes(foreign.read_bytes())
    os.chown(part, 65534, 65534)
    assert build.load_library("one", [tmp_path / "part.c"], extra={"b.c": "int b;"}).part() == 1


@pytest.mark.root
@pytest.mark.parametrize(("mode", "owner"), [(0o755, 65534), (0o777, 0), (0o775, 0), (0o1777, 0)])
def test_nothing_is_loaded_from_a_folder_that_another_user_may_write_to(mode: int, owner: int) -> None:
    plant(build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"]))
    build.cache_dir().chmod(mode)
    os.chown(build.cache_dir(), owner, owner)
    with pytest.raises(build.CompileError, match=r"code is not loaded from .*cache: .*Set SOFTP4_CACHE to"):
        build.load_library("t", extra=SOURCE, flags=["-DANSWER=1"])


@pytest.mark.root
def test_a_lock_of_another_user_is_not_followed(tmp_path: Path) -> None:
    """It would be emptied: a file of root's, wherever a link leads."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    target = build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"])
    target.unlink()
    target.with_suffix(".lock").symlink_to(kept)
    os.chown(build.cache_dir(), 65534, 65534)
    with pytest.raises(build.CompileError):
        build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"])
    assert kept.read_text() == "kept"


@pytest.mark.root
def test_a_library_is_loaded_from_the_folder_that_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone who owns the folder above can rename it at any moment, also just before the library is "
    "loaded."""
    above = tmp_path / "above"
    monkeypatch.setenv("SOFTP4_CACHE", str(above / "cache"))
    own = build.build_library("t", extra=SOURCE, flags=["-DANSWER=1"])
    plant(above / own.name)
    os.chown(above, 65534, 65534)
    load = build.ctypes.CDLL

    def late(path: str, **options: bool) -> object:
        (above / "cache").rename(above / "away")
        (above / "cache").mkdir()
        (above / own.name).rename(above / "cache" / own.name)
        return load(path, **options)

    monkeypatch.setattr(build.ctypes, "CDLL", late)
    assert build.load_library("t", extra=SOURCE, flags=["-DANSWER=1"]).answer() == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86-64, of which there are levels")
def test_the_best_library_of_a_wheel_that_the_processor_can_run_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package" / build.COMPILED
    folder.mkdir(parents=True)
    monkeypatch.setattr(build, "_BESIDE", tmp_path)
    build._compiled_folders.cache_clear()
    levels = build.LEVELS["x86_64"]
    try:
        with build.asked_for() as asked, pytest.raises(build.OnlyAskedError):
            build.build_library("t", extra=SOURCE, flags=["-DANSWER=43"])
        made = {
            level: build.make_packaged(asked[0], level, [*build.compiler(), f"-march={level}"], folder)
            for level in levels
        }
        for features, wanted in (
            (set().union(*levels.values()), made["x86-64-v3"]),
            (levels["x86-64-v2"], made["x86-64-v2"]),
        ):
            monkeypatch.setattr(build, "_processor", partial(str, " ".join(features)))
            assert build.build_library("t", extra=SOURCE, flags=["-DANSWER=43"]) == wanted
            assert build.load_library("t", extra=SOURCE, flags=["-DANSWER=43"]).answer() == 43
        monkeypatch.setattr(build, "_processor", lambda: "flags : sse2")
        other = build.build_library("t", extra=SOURCE, flags=["-DANSWER=43"])
        assert other.parent == build.cache_dir()
        monkeypatch.undo()
    finally:
        build._compiled_folders.cache_clear()
