# SPDX-License-Identifier: Apache-2.0
"""JSON that comes from a file or from another process: a value, or one kind of error."""

import json
import math
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is anything else: for instance not UTF-8, nested too deep, or with NaN, with numbers
            that are too large, or with halves of characters, which Python's own parser takes.
    """
    text = data.decode() if isinstance(data, bytes) else data
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return the object of a JSON text. Raises ValueError for anything else, also for another value."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"it is {type(value).__name__}, not an object")
    return value


def parse_record(kind: type[T], data: bytes | str) -> T:
    """Return the object of a dataclass whose fields are the members of a JSON object.

    kind: its fields are plain: str, int, bool, and list and dict of any values.
    Raises ValueError for anything else, also for members of other names or types.
    """
    said = parse_object(data)
    hints = get_type_hints(kind)
    needed = {one.name for one in fields(kind) if one.default is one.default_factory is MISSING}
    if missing := sorted(needed - said.keys()):
        raise ValueError(f"it has no {', '.join(missing)}")
    for name, value in said.items():
        if name not in hints:
            raise ValueError(f"{name[:40]!r} is not known here")
        wanted = get_origin(hints[name]) or hints[name]
        if type(value) is not wanted:
            raise ValueError(f"{name} is {type(value).__name__}, not {wanted.__name__}")
    return kind(**said)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is too large")
    return value
