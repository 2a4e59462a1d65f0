# SPDX-License-Identifier: Apache-2.0
"""Headers as scapy's layers describe them, read at the speed of ``struct``.

scapy looks at each field of each packet by itself. A ``Layout`` takes the same description once, the layer's
``fields_desc``, and reads the fields of a header of fixed length in one go.
"""

import struct
from typing import Any, Final

_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Layout:
    """Fields of fixed length with which a scapy layer begins.

    Example::

        fields = Layout(UDP).read(frame, at=34)
        fields["dport"]
    """

    def __init__(self, layer: Any) -> None:
        """Take the fields of a scapy layer, up to the first of variable length."""
        self._codes = "!"
        self._names: list[str] = []  # of a unit that is one field; "" of one that holds several
        self._parts: list[
            tuple[int, list[tuple[str, int, int]]]
        ] = []  # units, and their fields' shifts, masks
        run: list[tuple[str, int]] = []  # fields that have not come to a whole number of bytes
        for field in layer.fields_desc:
            bits = _bits(field)
            if bits is None:
                break
            run.append((field.name, bits))
            if sum(width for _, width in run) % 8 == 0:
                self._add(run)
                run = []
        if run:
            raise ValueError(f"{layer.__name__}: {[name for name, _ in run]} do not fill whole bytes")
        self._struct = struct.Struct(self._codes)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._struct.size

    def read(self, data: bytes, at: int = 0) -> dict[str, Any]:
        """Return the fields by name: numbers, and bytes of what is longer (MAC addresses).

        Raises:
            struct.error: the data end within the header.
        """
        values = self._struct.unpack_from(data, at)
        fields: dict[str, Any] = dict(zip(self._names, values, strict=True))
        for unit, parts in self._parts:
            value = values[unit]
            if isinstance(value, bytes):
                value = int.from_bytes(value, "big")
            for name, shift, mask in parts:
                fields[name] = value >> shift & mask
        fields.pop("", None)
        return fields

    def _add(self, run: list[tuple[str, int]]) -> None:
        """Add fields that fill a number of bytes together."""
        size = sum(width for _, width in run) // 8
        alone = len(run) == 1
        self._codes += _CODES.get(size, f"{size}s")
        if not alone:
            shift, parts = 8 * size, []
            for name, width in run:
                shift -= width
                parts.append((name, shift, (1 << width) - 1))
            self._parts.append((len(self._names), parts))
        self._names.append(run[0][0] if alone else "")


def _bits(field: Any) -> int | None:
    """Return the width of a field in bits; None when it varies."""
    from scapy.fields import FieldListField, PacketListField

    field = getattr(field, "fld", field)  # what scapy prints in bold is wrapped
    if isinstance(field, FieldListField | PacketListField):
        return None
    return int(getattr(field, "size", 0) or 8 * field.sz)
