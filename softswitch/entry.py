# SPDX-License-Identifier: Apache-2.0
"""Table entries as the control plane sees them. Values are plain non-negative integers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Exact:
    """The field equals ``value``."""

    value: int


@dataclass(frozen=True)
class Lpm:
    """The ``prefix_len`` most significant bits of the field equal those of ``value``."""

    value: int
    prefix_len: int


@dataclass(frozen=True)
class Ternary:
    """The field equals ``value`` wherever ``mask`` has a one; mask 0 matches everything."""

    value: int
    mask: int


@dataclass(frozen=True)
class Range:
    """``low`` <= field <= ``high``."""

    low: int
    high: int


@dataclass(frozen=True)
class Optional:
    """The field equals ``value``, or anything when it is None."""

    value: int | None


Match = Exact | Lpm | Ternary | Range | Optional


@dataclass(frozen=True)
class MeterConfig:
    """How a two-rate three-colour meter (RFC 2698) is configured, in the meter's units: packets or bytes.

    Attributes:
        cir: committed information rate, in units a second.
        cburst: committed burst size, in units.
        pir: peak information rate, at least `cir`.
        pburst: peak burst size.
    """

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True)
class Entry:
    """One table entry.

    Attributes:
        key: one match per key field, in the table's order.
        action: fully qualified action name.
        args: one value per action parameter, in order.
        priority: of a table with a ternary, range or optional field; the larger number wins (as in
            P4Runtime, against BMv2's own runtime where the smaller wins). 0 for other tables.
        timeout_ns: in a table whose entries age, after how long without a packet `Switch.expired` reports
            the entry; 0 for never.
        meter: in a table with a direct meter, how the entry's is configured; None for one that finds every
            packet green.
    """

    key: tuple[Match, ...]
    action: str
    args: tuple[int, ...] = ()
    priority: int = 0
    timeout_ns: int = 0
    meter: MeterConfig | None = None


@dataclass(frozen=True)
class Replica:
    """Where one copy of a packet goes: an egress port and the replication id the program sees."""

    port: int
    rid: int = 0


@dataclass(frozen=True)
class CloneSession:
    """Where clones go, and how many bytes of the packet they keep (0: all)."""

    replicas: tuple[Replica, ...]
    packet_length: int = 0


@dataclass(frozen=True)
class Count:
    """One counter cell."""

    packets: int
    bytes: int


@dataclass(frozen=True)
class Marked:
    """What a meter has found green, yellow and red."""

    green: Count
    yellow: Count
    red: Count
