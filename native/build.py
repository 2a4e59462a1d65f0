# SPDX-License-Identifier: Apache-2.0
"""Compile C on first use and load it: the one mechanism behind every native part of Weir.

The result is cached by content, so a second process, or a second start, only loads it.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

FLAGS: Final = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-math-errno")


class NoCompilerError(RuntimeError):
    """No C compiler was found on this machine."""


class CompileError(RuntimeError):
    """The compiler refused the source; its own words are in the message."""


def cache_dir() -> Path:
    """Where compiled libraries are kept: ``$WEIR_CACHE``, or ``weir`` under the user's cache folder."""
    if chosen := os.environ.get("WEIR_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command of a working C compiler: ``$CC``, cc, gcc, clang, or the one ``ziglang`` carries.

    Raises NoCompilerError when there is none.
    """
    if chosen := os.environ.get("CC"):
        return tuple(shlex.split(chosen))
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    raise NoCompilerError(
        "Weir compiles its switch and transport on first use and found no C compiler "
        "($CC, cc, gcc, clang). Install one (for example `apt install gcc`), or `pip install ziglang`."
    )


@functools.cache
def _compiler_identity() -> str:
    """What makes a binary of this compiler on this processor differ from another's."""
    try:
        done = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompilerError(f"the C compiler {shlex.join(compiler())} cannot be run: {error}") from error
    flags = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():  # -march=native: another processor needs another binary
        flags = next(
            (ln for ln in cpuinfo.read_text().splitlines() if ln.startswith(("flags", "Features"))), ""
        )
    return done.stdout + flags


def _headers(folders: Sequence[Path]) -> list[Path]:
    return [header for folder in folders for header in sorted(folder.glob("*.h"))]


def build_library(
    name: str,
    sources: Sequence[Path] = (),
    *,
    extra: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> Path:
    """Compile ``sources`` and the texts in ``extra`` (file name to content) into one shared library.

    Every header of the ``include`` folders and of the sources' folders counts towards the cache key.
    Returns the library's path. Raises NoCompilerError or CompileError.
    """
    extra = extra or {}
    folders = list(dict.fromkeys([*include, *(source.parent for source in sources)]))
    digest = hashlib.sha256()
    for part in (*compiler(), _compiler_identity(), *FLAGS, *flags):
        digest.update(part.encode() + b"\0")
    for path in [*sources, *_headers(folders)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for file, text in sorted(extra.items()):
        digest.update(file.encode() + b"\0" + text.encode() + b"\0")
    target = cache_dir() / f"{name}-{digest.hexdigest()[:24]}.so"
    if not target.exists():
        with _alone(target):
            if not target.exists():
                _compile(target, sources, extra, folders, flags)
    return target


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one process at a time make ``target``: several that start together would all compile the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_suffix(".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # ends with the file's closing, or with this process
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # who waits for it finds the target


def _compile(
    target: Path,
    sources: Sequence[Path],
    extra: Mapping[str, str],
    folders: Sequence[Path],
    flags: Sequence[str],
) -> None:
    """Compile into a scratch folder, then rename: another process sees the whole file or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        for file, text in extra.items():
            (Path(scratch) / file).write_text(text)
        units = [*map(str, sources), *(file for file in extra if file.endswith(".c"))]
        command = [*compiler(), *FLAGS, *flags, "-I.", *(f"-I{folder}" for folder in folders), *units]
        command += ["-o", "library.so", "-lm"]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoCompilerError(
                f"the C compiler {shlex.join(compiler())} cannot be run: {error}"
            ) from error
        if done.returncode:
            raise CompileError(
                f"compiling {target.name} failed: {shlex.join(command)}\n{done.stderr[-4000:]}"
            )
        (Path(scratch) / "library.so").replace(target)


def load_library(
    name: str,
    sources: Sequence[Path] = (),
    *,
    extra: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> ctypes.CDLL:
    """``build_library``, then load it. Calls into the library release the interpreter lock."""
    return ctypes.CDLL(
        str(build_library(name, sources, extra=extra, include=include, flags=flags)), use_errno=True
    )
