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
    """Configuration of a two-rate three-colour meter (RFC 2698), in the meter's units: packets or bytes.

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
class ByMember:
    """The action of a member of the table's action profile."""

    member: int


@dataclass(frozen=True)
class ByGroup:
    """The action of one member of a group of the table's action profile; a hash of the packet chooses it."""

    group: int


@dataclass(frozen=True)
class Watch:
    """A port that must be up for a member of a group to be chosen.

    ``numeric``: the controller wrote it as a number (P4Runtime's ``watch``), not as bytes (``watch_port``).
    """

    port: int
    numeric: bool = False


@dataclass(frozen=True)
class WeightedAction:
    """An action of a one-shot group, chosen ``weight`` times as often as one of weight 1."""

    action: str
    args: tuple[int, ...] = ()
    weight: int = 1
    watch: Watch | None = None


@dataclass(frozen=True)
class ActionSet:
    """A one-shot group: actions that belong to one entry only."""

    actions: tuple[WeightedAction, ...]


Via = ByMember | ByGroup | ActionSet
"""What an entry of a table with an action profile has instead of an action."""


@dataclass(frozen=True)
class Entry:
    """One table entry.

    Attributes:
        key: one match per key field, in the table's order.
        action: fully qualified action name; empty with `via`.
        args: one value per action parameter, in order.
        priority: of a table with a ternary, range or optional field; the larger number wins (as in
            P4Runtime, against BMv2's own runtime where the smaller wins). 0 for other tables.
        timeout_ns: in a table whose entries age, after how long without a packet `Switch.expired` reports
            the entry; 0 for never.
        meter: in a table with a direct meter, how the entry's is configured; None for one that finds every
            packet green.
        via: of a table with an action profile, what the entry refers to.
    """

    key: tuple[Match, ...]
    action: str = ""
    args: tuple[int, ...] = ()
    priority: int = 0
    timeout_ns: int = 0
    meter: MeterConfig | None = None
    via: Via | None = None


@dataclass(frozen=True)
class Member:
    """A member of an action profile: an action with its arguments."""

    id: int
    action: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupMember:
    """A member's part in a group, chosen ``weight`` times as often as one of weight 1."""

    member: int
    weight: int = 1
    watch: Watch | None = None


@dataclass(frozen=True)
class Group:
    """A group of members. ``max_size``: the greatest sum of their weights; 0: what the profile allows."""

    id: int
    members: tuple[GroupMember, ...] = ()
    max_size: int = 0


@dataclass(frozen=True)
class Replica:
    """Destination of one copy of a packet: an egress port and the replication id the program sees."""

    port: int
    rid: int = 0


@dataclass(frozen=True)
class CloneSession:
    """Destinations of clones, and the bytes of the packet that they keep (0: all)."""

    replicas: tuple[Replica, ...]
    packet_length: int = 0


@dataclass(frozen=True)
class Count:
    """One counter cell."""

    packets: int
    bytes: int


@dataclass(frozen=True)
class Marked:
    """Packets and bytes that a meter has found green, yellow and red."""

    green: Count
    yellow: Count
    red: Count
