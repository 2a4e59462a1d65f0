# SPDX-License-Identifier: Apache-2.0
"""Checked access to parsed JSON: every wrong shape becomes a ProgramError that says where it is."""

from typing import Any

from softp4.program.errors import ProgramError

Json = Any


def member(value: Json, key: str, kind: type | tuple[type, ...], where: str) -> Json:
    """Return `value[key]`, which must exist and be of `kind`."""
    if not isinstance(value, dict) or key not in value:
        raise ProgramError(f"{where}: no '{key}'")
    return checked(value[key], kind, f"{where}, '{key}'")


def checked(value: Json, kind: type | tuple[type, ...], where: str) -> Json:
    """Return `value`, which must be of `kind` (a bool is not an int)."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not {bool, object} & {*kinds}):
        names = " or ".join(each.__name__ for each in kinds)
        raise ProgramError(f"{where}: expected {names}, found {value!r:.60}")
    return value


def text(value: Json, key: str, where: str) -> str:
    """Return a string member."""
    result: str = member(value, key, str, where)
    return result


def number(value: Json, key: str, where: str) -> int:
    """Return an integer member that is not negative."""
    result: int = member(value, key, int, where)
    if result < 0:
        raise ProgramError(f"{where}, '{key}': negative")
    return result


def objects(value: Json, key: str, where: str) -> list[Json]:
    """Return a list member; a missing one is an empty list, as BMv2 reads it."""
    if isinstance(value, dict) and value.get(key) is None:
        return []
    result: list[Json] = member(value, key, list, where)
    return result


def pair(value: Json, where: str) -> tuple[str, str]:
    """Return a list of two strings."""
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)):
        raise ProgramError(f"{where}: expected a pair of names, found {value!r:.60}")
    return value[0], value[1]


def hexstr(value: Json, where: str) -> int:
    """Return a BMv2 hexadecimal string, possibly negative."""
    if isinstance(value, str):
        try:
            return int(value, 16)
        except ValueError:
            pass
    raise ProgramError(f"{where}: expected a hexadecimal number, found {value!r:.60}")
