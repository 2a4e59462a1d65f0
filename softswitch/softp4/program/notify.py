# SPDX-License-Identifier: Apache-2.0
"""BMv2 JSON meters and digests."""

from collections.abc import Callable
from typing import Final

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.ir import FieldRef
from softp4.program.json import Json, number, objects, text
from softp4.program.types import DigestList, Meter

FieldReader = Callable[[object, str], FieldRef]
"""Reads a ``[header, field]`` pair; the second argument says where it stands."""

_MAX_METERS: Final = 1 << 24
_RATES: Final = 2


def read_meter(node: Json, field: FieldReader) -> Meter:
    """Read one of ``meter_arrays``."""
    where = f"meter {text(node, 'name', 'meter')}"
    if number(node, "rate_count", where) != _RATES:
        raise UnsupportedConstruct(f"a meter of {node['rate_count']} rates", where)
    unit = text(node, "type", where)
    if unit not in ("packets", "bytes"):
        raise UnsupportedConstruct(f"a meter of '{unit}'", where)
    if node.get("is_direct"):
        target = field(node.get("result_target"), where)
        return Meter(node["name"], 0, unit == "bytes", text(node, "binding", where), target)
    size = number(node, "size", where)
    if size > _MAX_METERS:
        raise ProgramError(f"{where}: {size} meters")
    return Meter(node["name"], size, unit == "bytes", None, None)


def read_digest(node: Json, field: FieldReader) -> DigestList:
    """Read one of ``learn_lists``."""
    where = f"digest {text(node, 'name', 'digest')}"
    fields = []
    for each in objects(node, "elements", where):
        if text(each, "type", where) != "field":
            raise UnsupportedConstruct(f"digest element '{each['type']}'", where)
        fields.append(field(each.get("value"), where))
    if not fields:
        raise ProgramError(f"{where}: nothing in it")
    return DigestList(number(node, "id", where), node["name"], tuple(fields))
