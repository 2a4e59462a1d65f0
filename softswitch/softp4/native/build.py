# SPDX-License-Identifier: Apache-2.0
"""Compile C on first use and load it: the one mechanism behind every native part.

The result is cached by content, so a second process, or a second start, only loads it. A file of the cache
that is not as it was written (a disk ran full, power failed) is made again, and so is one that another user
could have written. ``$SOFTP4_CFLAGS`` is added to the compiler's flags, for sanitizers.

A wheel may bring libraries that were compiled of the same sources with the same flags, for several levels of
processors. Then the best one that this processor can run is loaded, and no compiler is needed.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import glob
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from softp4.native.ownership import OwnershipError, read_trusted, trusted_folder
from softp4.native.scratch import is_locked, scratch_folder

DIALECT: Final = ("-std=gnu11", "-pthread")
# Without contraction sums of products have the same bits on every machine, and on a GPU.
FLAGS: Final = ("-O3", "-march=native", *DIALECT, "-fPIC", "-fno-math-errno", "-ffp-contract=off")
_FOR_ANY: Final = tuple(flag for flag in FLAGS if flag != "-march=native")

COMPILED: Final = "compiled_c"
"""Folder of compiled libraries in an installed package, of any distribution beside this one."""

LEVELS: Final = {
    "x86_64": {
        "x86-64-v3": frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]),
        "x86-64-v2": frozenset(["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"]),
    },
    "aarch64": {"armv8-a": frozenset[str]()},
}
"""By machine: what -march calls levels of processors, the best first, and the features that each needs."""

_BESIDE: Final = Path(__file__).resolve().parents[2]

_REMEDY: Final = "Set SOFTP4_CACHE to a folder of this user's own"
_ROOM: Final = 4 << 20  # bytes; with less, a compiler that fails may have failed for want of it


class NoCompilerError(RuntimeError):
    """No C compiler was found on this machine."""


class CompileError(RuntimeError):
    """The compiler refused the source, or its result cannot be kept or loaded; the message says why."""


class OnlyAskedError(Exception):
    """A library was not built, but listed by `asked_for`."""


def cache_dir() -> Path:
    """Return where compiled libraries are kept: ``$SOFTP4_CACHE``, or ``softp4`` under the user's cache
    folder.

    Raises CompileError for a user without a home, as in many containers.
    """
    if chosen := os.environ.get("SOFTP4_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softp4"
    except RuntimeError as error:
        raise CompileError(f"there is no folder for compiled code: {error} {_REMEDY}") from None


@contextlib.contextmanager
def cache_folder() -> Iterator[Path]:
    """Yield the folder of compiled libraries, made if need be, in which nobody else can put anything.

    Raises CompileError when there can be none.
    """
    path = cache_dir()
    with contextlib.ExitStack() as held:
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
            folder = held.enter_context(trusted_folder(path))
        except OSError as error:
            raise _unusable(path, error) from error
        yield folder


def _unusable(path: Path, error: OSError) -> CompileError:
    if isinstance(error, OwnershipError):
        return CompileError(f"code is not loaded from {path}: {error.strerror}, or choose another. {_REMEDY}")
    return CompileError(f"cannot keep compiled code in {path}: {error.strerror or error}. {_REMEDY}")


@functools.cache
def compiler() -> tuple[str, ...]:
    """Return the command of a C compiler that links: ``$CC``, cc, gcc, clang, or the one of ``ziglang``.

    Raises NoCompilerError when there is none.
    """
    if chosen := os.environ.get("CC"):
        return tuple(shlex.split(chosen))
    for name in ("cc", "gcc", "clang"):
        if (path := shutil.which(name)) and _has_libc(path):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        # It would ask a `cc` for headers, also one that has none; without, it takes its own.
        return ("env", "CC=none", sys.executable, "-m", "ziglang", "cc")
    raise NoCompilerError(
        "found no C compiler with a C library ($CC, cc, gcc, clang), by which programs are compiled on first "
        "use. Install one (for example `apt install gcc libc6-dev`), or "
        "`pip install ziglang`."
    )


def _has_libc(path: str) -> bool:
    """Tell whether a compiler can link: Debian's gcc comes without the C library's files if one lets it."""
    done = subprocess.run([path, "-print-file-name=crti.o"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and Path(done.stdout.strip()).is_absolute()


@functools.cache
def _compiler_digest() -> str:
    """Return what tells this compiler from another in a file's name."""
    try:
        done = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompilerError(f"the C compiler {shlex.join(compiler())} cannot be run: {error}") from error
    return hashlib.sha256("\0".join((*compiler(), done.stdout)).encode()).hexdigest()[:8]


@functools.cache
def _processor() -> str:
    """Return what makes a binary for this processor differ from another's, which -march=native needs."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return ""
    return next((ln for ln in cpuinfo.read_text().splitlines() if ln.startswith(("flags", "Features"))), "")


def _chosen_flags() -> list[str]:
    return shlex.split(os.environ.get("SOFTP4_CFLAGS", ""))


def _headers(folders: Sequence[Path]) -> list[Path]:
    return [header for folder in folders for header in sorted(folder.glob("*.h"))]


@dataclass(frozen=True)
class Parts:
    """The parts of a library. Every header of ``folders`` counts towards what it, and each object, is."""

    name: str
    sources: tuple[Path, ...]
    extra: Mapping[str, str]
    folders: tuple[Path, ...]
    flags: tuple[str, ...]

    def target(self, cache: Path) -> Path:
        """Return the library, in the cache. Raises NoCompilerError."""
        return cache / f"{self._stem}-{_compiler_digest()}.so"

    def made_elsewhere(self, cache: Path) -> Iterator[Path]:
        """Yield the libraries in the cache that any compiler made of the same."""
        yield from cache.glob(f"{glob.escape(self._stem)}-*.so")

    @property
    def _stem(self) -> str:
        files = [*self.sources, *_headers(self.folders)]
        return f"{self.name}-{self._digest(files, self.extra)}"

    def packaged(self, level: str) -> str:
        """Return the name of the library of a wheel for a level of processors."""
        files = [*self.sources, *_headers(self.folders)]
        return f"{self.name}-{self._digest(files, self.extra, (level, *_FOR_ANY))}.so"

    def object(self, source: Path, cache: Path) -> Path:
        """Return what one of ``sources`` becomes, in the cache: libraries that differ elsewhere share it."""
        headers = {name: text for name, text in self.extra.items() if not name.endswith(".c")}
        digest = self._digest([source, *_headers(self.folders)], headers)
        return cache / f"{source.stem}-{digest}-{_compiler_digest()}.o"

    def _digest(
        self, files: Sequence[Path], texts: Mapping[str, str], made_for: Sequence[str] | None = None
    ) -> str:
        digest = hashlib.sha256()
        for part in (*(made_for or (_processor(), *FLAGS)), *self.flags):
            digest.update(part.encode() + b"\0")
        for path in files:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        for file, text in sorted(texts.items()):
            digest.update(file.encode() + b"\0" + text.encode() + b"\0")
        return digest.hexdigest()[:24]


def build_library(
    name: str,
    sources: Sequence[Path] = (),
    *,
    extra: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> Path:
    """Compile ``sources`` and the texts in ``extra`` (file name to content) into one shared library.

    Every header of the ``include`` folders and of the sources' folders counts towards the cache key. If a
    wheel brought the library, that one is taken. Without a compiler, what another one has put in the cache
    will do. Returns the library's path. Raises NoCompilerError or CompileError.
    """
    parts = _parts(name, sources, extra, include, flags)
    if found := _packaged(parts):
        return found
    with cache_folder() as cache:
        return cache_dir() / _built(cache, parts).name


def _parts(
    name: str,
    sources: Sequence[Path],
    extra: Mapping[str, str] | None,
    include: Sequence[Path],
    flags: Sequence[str],
) -> Parts:
    folders = tuple(dict.fromkeys([*include, *(source.parent for source in sources)]))
    parts = Parts(name, tuple(sources), extra or {}, folders, (*flags, *_chosen_flags()))
    if _asked is not None:
        _asked.append(parts)
        raise OnlyAskedError(name)
    return parts


_asked: list[Parts] | None = None


@contextlib.contextmanager
def asked_for() -> Iterator[list[Parts]]:
    """Yield a list of the libraries that are asked for in the block, where each raises OnlyAskedError."""
    global _asked  # noqa: PLW0603
    _asked = []
    try:
        yield _asked
    finally:
        _asked = None


@functools.cache
def _compiled_folders() -> tuple[Path, ...]:
    return tuple(_BESIDE.glob(f"*/{COMPILED}"))


def _packaged(parts: Parts) -> Path | None:
    """Return the best library that a wheel brought and this processor can run, if there is one."""
    if not _compiled_folders():
        return None
    features = set(_processor().split())
    levels = (level for level, needed in LEVELS.get(platform.machine(), {}).items() if needed <= features)
    return next(filter(None, (packaged_file(parts.packaged(level)) for level in levels)), None)


def packaged_file(name: str) -> Path | None:
    """Return a file that a wheel brought in its folder of compiled libraries, if there is one."""
    return next((folder / name for folder in _compiled_folders() if (folder / name).is_file()), None)


def make_packaged(parts: Parts, level: str, command: Sequence[str], folder: Path) -> Path:
    """Compile a library for a wheel.

    Args:
        parts: Its parts.
        level: Level of processors, see ``LEVELS``.
        command: A C compiler for the wheel's system, and its flags for the level.
        folder: Where the library is put.

    Returns:
        The library.

    Raises:
        CompileError: The compiler refused the source.
    """
    target = folder / parts.packaged(level)
    with scratch_folder("softp4-build") as scratch:
        for file, text in parts.extra.items():
            (scratch / file).write_text(text)
        units = [*map(str, parts.sources), *(file for file in parts.extra if file.endswith(".c"))]
        include = (f"-I{path}" for path in parts.folders)
        flags = (*_FOR_ANY, *parts.flags, "-I.", *include)
        _run([*command, *flags, "-shared", "-s", *units, "-o", "library.so", "-lm"], scratch, parts.name)
        shutil.copyfile(scratch / "library.so", target)
    return target


def _built(cache: Path, parts: Parts) -> Path:
    """Return the path of a library in the open cache; errors as of ``build_library``."""
    try:
        target = parts.target(cache)
    except NoCompilerError:
        if found := next(filter(_is_whole, parts.made_elsewhere(cache)), None):
            return found
        raise
    if not _is_whole(target):
        try:
            with _alone(target):
                if not _is_whole(target):
                    _make(parts, target)
        except OSError as error:
            raise _unusable(cache_dir(), error) from error
    return target


def _seal(path: Path) -> None:
    """Append the digest of a file's content, which neither linker nor loader looks at; let others read it."""
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        file.write(digest)
        os.fchmod(file.fileno(), 0o755)


def _is_whole(path: Path) -> bool:
    """Tell whether a sealed file is there, as it was written here: to load half a library can kill a process,
    and another user's may do anything.
    """
    try:
        content = memoryview(read_trusted(path))
    except OSError:
        return False
    end = len(content) - hashlib.sha256().digest_size
    return end > 0 and hashlib.sha256(content[:end]).digest() == content[end:]


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one process at a time make ``target``: several that start together would all compile the same."""
    lock = target.with_suffix(".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # ends with the file's closing, or with this process
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # who waits for it finds the target


def is_compiling() -> bool:
    """Tell whether some process compiles into the cache now, for which others may have to wait."""
    return any(map(is_locked, cache_dir().glob("*.lock")))


def _make(build: Parts, target: Path) -> None:
    """Compile all units at once in a scratch folder, then rename: others see whole files or none."""
    with (
        scratch_folder("softp4-build", target.parent) as scratch,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for file, text in build.extra.items():
            (scratch / file).write_text(text)
        texts = [scratch / file for file in build.extra if file.endswith(".c")]
        made = [pool.submit(_compile, build, unit, unit.with_suffix(".o"), scratch) for unit in texts]
        kept = [(source, build.object(source, target.parent)) for source in build.sources]
        made += [pool.submit(_compile, build, *pair, scratch) for pair in kept if not _is_whole(pair[1])]
        for done in made:
            done.result()
        objects = [*(path for _, path in kept), *(unit.with_suffix(".o") for unit in texts)]
        library = scratch / "library.so"
        _run(
            [*compiler(), *FLAGS, *build.flags, "-shared", *map(str, objects), "-o", str(library), "-lm"],
            scratch,
            target.name,
        )
        _seal(library)
        library.replace(target)


def _compile(build: Parts, unit: Path, target: Path, scratch: Path) -> None:
    handle, half = tempfile.mkstemp(dir=scratch, suffix=".o")
    os.close(handle)
    include = (f"-I{folder}" for folder in build.folders)
    command = [*compiler(), *FLAGS, *build.flags, "-I.", *include, "-c", str(unit), "-o", half]
    _run(command, scratch, build.name)
    _seal(Path(half))
    Path(half).replace(target)


def _run(command: Sequence[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompilerError(f"the C compiler {shlex.join(compiler())} cannot be run: {error}") from error
    if done.returncode:
        raise CompileError(
            f"compiling {what} failed: {shlex.join(command)}\n{done.stderr[-4000:]}{_without_room(folder)}"
        )


def _without_room(folder: Path) -> str:
    """Return a line about a disk that is as good as full, which not every compiler says a word about."""
    free = shutil.disk_usage(folder).free
    if free >= _ROOM:
        return ""
    return f"{os.strerror(errno.ENOSPC)}: {free >> 10} KiB are free in {folder.resolve()}. {_REMEDY}\n"


Signatures = Mapping[str, tuple[Any, Sequence[Any]]]
"""Of C functions by name: the ctypes of the result and of the arguments."""


def load_library(
    name: str,
    sources: Sequence[Path] = (),
    *,
    extra: Mapping[str, str] | None = None,
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    signatures: Signatures | None = None,
) -> ctypes.CDLL:
    """Build a library (see `build_library`), load it and declare the functions of ``signatures``.

    Calls into the library release the interpreter lock.
    """
    parts = _parts(name, sources, extra, include, flags)
    if found := _packaged(parts):
        library = _opened(found)
    else:
        with cache_folder() as cache:
            library = _opened(_built(cache, parts))
    for function, (result, arguments) in (signatures or {}).items():
        entry_point = getattr(library, function)
        entry_point.restype, entry_point.argtypes = result, arguments
    return library


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:  # whole, but of another system, or where nothing may be run (noexec)
        raise CompileError(f"{error}; give this system a cache of its own ($SOFTP4_CACHE)") from error
