# SPDX-License-Identifier: Apache-2.0
"""Damage to files and messages: flipped bits, cuts, insertions, and values that a field cannot have.

``check_file`` and ``check_message`` give a reader everything that ``damaged`` makes of something valid. A
reader may take it, or raise the error that it documents; any other exception is a failure of the test.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.harness.effort import effort

Errors = tuple[type[Exception], ...]

_INSERTIONS: Final = (
    b"\xff", b"\x00", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"NaN", b"Infinity", b"-1e999", b'"',
    b"\\", b"{", b"]", b"\n", b"&a *a", b"9" * 5000,
    b"[" * 20_000, b'{"":' * 20_000,
)  # fmt: skip

_ODD_VALUES: Final = (
    None, True, -1, 0, 2**31, 2**63, 10**30, -0.5, 1e308, "", "x", "\ud800", "\0", "9" * 5000,
    [], [[]], {}, {"a": 0},
)  # fmt: skip
_ODD_TEXTS: Final = ("NaN", "Infinity", "-Infinity", "1e999", "[" * 20_000 + "]" * 20_000)
_MARK: Final = "here the odd text comes"


def damaged(content: bytes, *, flips: int = 2000, others: int = 100, seed: int = 1) -> Iterator[bytes]:
    """Yield damaged copies of ``content``.

    Args:
        flips: at most this many single-bit flips; of shorter contents, all. By default a quarter of them.
        others: of cuts, and of insertions each, at places drawn from ``seed``. By default a third of them.

    Values of a JSON document are all replaced, by default by a third of the odd values each, in turn.
    """
    flips, others = effort(flips // 4, flips), effort(others // 3, others)
    drawn = random.Random(seed)
    bits = range(8 * len(content))
    for bit in bits if len(bits) <= flips else drawn.sample(bits, flips):
        yield content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]
    yield from (b"", b"\0" * len(content), content.decode("latin-1").encode("utf-16"), content + content)
    for _ in range(others):
        yield content[: drawn.randrange(len(content))]
        at, until = sorted((drawn.randrange(len(content)), drawn.randrange(len(content))))
        yield content[:at] + content[until:]
        inserted = drawn.choice((*_INSERTIONS, drawn.randbytes(4)))
        yield content[:at] + inserted + content[at:]
    try:
        document = json.loads(content)
    except ValueError:
        return
    yield from _odd_documents(document)


def _odd_documents(document: Any) -> Iterator[bytes]:
    """Yield a JSON document with each of its values replaced, left out, or given twice."""
    some = effort(3, 1)
    for number, path in enumerate(_paths(document)):
        for value in _ODD_VALUES[number % some :: some]:
            yield json.dumps(_with(document, path, value)).encode()
        marked = json.dumps(_with(document, path, _MARK))
        for text in _ODD_TEXTS[number % some :: some]:
            yield marked.replace(f'"{_MARK}"', text).encode()
        if path:
            changed = copy.deepcopy(document)
            parent = _at(changed, path[:-1])
            del parent[path[-1]]
            yield json.dumps(changed).encode()
            if isinstance(parent, list):
                parent[path[-1] : path[-1]] = [_at(document, path)] * 2
            else:
                parent[f"{path[-1]}?"] = _at(document, path)
            yield json.dumps(changed).encode()


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from _paths(part, (*above, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(document: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    _at(changed, path[:-1])[path[-1]] = value
    return changed


def check_file(
    path: Path,
    load: Callable[[Path], object],
    errors: type[Exception] | Errors,
    *,
    sealed: bool = False,
    flips: int = 2000,
    others: int = 100,
) -> None:
    """Check a reader of files with all damage to a valid one.

    Args:
        path: of the valid file, which is overwritten.
        load: reads a file.
        errors: that ``load`` documents. Their texts must name the file.
        sealed: the file has a checksum: every change must be refused.
        flips, others: of ``damaged``.
    """
    content = path.read_bytes()
    load(path)  # it is valid

    def look(data: bytes) -> object:
        path.write_bytes(data)
        return load(path)

    _check(content, look, errors, path.name, sealed, flips, others)


def check_message(
    content: bytes,
    decode: Callable[[bytes], object],
    errors: type[Exception] | Errors,
    *,
    sealed: bool = False,
    flips: int = 2000,
    others: int = 100,
) -> None:
    """Check a decoder with all damage to a valid message; see ``check_file``."""
    decode(content)  # it is valid
    _check(content, decode, errors, "", sealed, flips, others)


def _check(
    content: bytes,
    look: Callable[[bytes], object],
    errors: type[Exception] | Errors,
    name: str,
    sealed: bool,
    flips: int,
    others: int,
) -> None:
    wrong: dict[str, bytes] = {}
    refused = 0
    for data in damaged(content, flips=flips, others=others):
        try:
            look(data)
            if sealed and data != content:
                wrong.setdefault("taken, though the checksum cannot fit", data)
        except errors as error:
            refused += 1
            str(error).encode()
            if name not in str(error):
                wrong.setdefault(f"the text does not name {name}: {error}", data)
        except Exception as error:
            wrong.setdefault(f"{type(error).__name__}: {error!s:.200}", data)
    said = "\n".join(f"{what}\n    by {_short(data)}" for what, data in list(wrong.items())[:10])
    assert not wrong, f"{len(wrong)} kinds of wrong answers:\n{said}"
    assert refused, "nothing was refused"


def _short(data: bytes) -> str:
    return repr(data) if len(data) < 1500 else f"{data[:700]!r}...{data[-700:]!r}"
