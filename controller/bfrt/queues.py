# SPDX-License-Identifier: Apache-2.0
"""Queues of a Tofino's ports: which goes first, and from which filling on yellow and red packets are dropped.

The traffic manager knows them by port group and number in it, pipe by pipe: a port's own table says which.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from weir.controller.bfrt.codec import datum, key_message, set_datum
from weir.controller.bfrt.messages import bfruntime_pb2
from weir.controller.bfrt.schema import Schema
from weir.controller.entries import Param
from weir.controller.tofino import QueueLimits

_PORTS: Final = "tf1.tm.port.cfg"
_SCHEDULING: Final = "tf1.tm.queue.sched_cfg"
_COLOURS: Final = "tf1.tm.queue.color"
_PER_PIPE: Final = 7  # bits of a device port that say where in its pipe it is
_SHARES: Final = ("12.5%", "25%", "37.5%", "50%", "62.5%", "75%", "87.5%", "100%")


def places(schema: Schema, ports: Iterable[int]) -> Iterator[Any]:
    """Yield what selects, port by port, where its queues are."""
    table = schema.table(_PORTS)
    for port in ports:
        entry = bfruntime_pb2.TableEntry(table_id=table.id)
        entry.key.CopyFrom(key_message(table, (("dev_port", port),)))
        yield entry


def settings(schema: Schema, limits: Iterable[QueueLimits], found: Iterable[Any]) -> Iterator[Any]:
    """Yield the entries to modify for each queue, given what ``places`` has selected.

    A port without as many queues of its own as there are classes is left as it is.
    """
    ports: dict[int, tuple[int, list[int]]] = {}
    names = {field.id: field.name for field in schema.table(_PORTS).data}
    for entry in found:
        said = {names[field.field_id]: datum(field) for field in entry.data.fields if field.field_id in names}
        group, queues = said["pg_id"], said["egress_qid_queues"]
        assert isinstance(group, int) and isinstance(queues, list)
        ports[int.from_bytes(entry.key.fields[0].exact.value, "big")] = group, queues
    for limit in limits:
        group, queues = ports.get(limit.port, (0, []))
        if limit.queue < len(queues) and len(set(queues[: limit.queue + 1])) > limit.queue:
            where = (("pg_id", group), ("pg_queue", queues[limit.queue]))
            order = str(limit.queue)
            yield _entry(schema, _SCHEDULING, limit, where, {"min_priority": order, "max_priority": order})
            yield _entry(schema, _COLOURS, limit, where, _colours(limit))


def _colours(limit: QueueLimits) -> dict[str, Param]:
    if not limit.red:
        return {"drop_enable": 0}
    return {
        "drop_enable": 1,
        "drop_limit_yellow": _SHARES[limit.yellow - 1],
        "drop_limit_red": _SHARES[limit.red - 1],
    }


def _entry(
    schema: Schema,
    name: str,
    limit: QueueLimits,
    where: tuple[tuple[str, int], ...],
    values: dict[str, Param],
) -> Any:
    table = schema.table(name)
    entry = bfruntime_pb2.TableEntry(table_id=table.id)
    entry.entry_tgt.pipe_id = limit.port >> _PER_PIPE
    entry.entry_tgt.direction = entry.entry_tgt.prsr_id = 0xFF
    entry.key.CopyFrom(key_message(table, where))
    fields = {field.name: field for field in table.data}
    for field, value in values.items():
        set_datum(fields[field], value, entry.data.fields.add())
    return entry
