# SPDX-License-Identifier: Apache-2.0
"""Multicast groups of a Tofino: a group is a list of nodes, and a node is ports with one replication id.

Each of our groups has a node for each replication id; its number follows from both.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from weir.controller.bfrt.codec import datum, key_message, set_datum
from weir.controller.bfrt.messages import bfruntime_pb2
from weir.controller.bfrt.schema import Schema, Table
from weir.controller.entries import Param, Replica
from weir.controller.sync import GroupUpdate, Verb

_GROUPS: Final = "$pre.mgid"
_NODES: Final = "$pre.node"
_GROUP, _NODE, _RID, _PORTS, _LAGS = (
    "$MGID",
    "$MULTICAST_NODE_ID",
    "$MULTICAST_RID",
    "$DEV_PORT",
    "$MULTICAST_LAG_ID",
)
_XID_VALID, _XID = "$MULTICAST_NODE_L1_XID_VALID", "$MULTICAST_NODE_L1_XID"
_RIDS: Final = 64  # more than a group has replication ids

_Value = Param | list[int]


@dataclass
class Groups:
    """The groups of a switch: the nodes of each, and replication id and ports of these."""

    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    nodes: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)  # replication id, ports

    def replicas(self) -> dict[int, frozenset[Replica]]:
        """Return the groups as the controller has them."""
        return {
            group: frozenset(
                Replica(port, rid)
                for rid, ports in (self.nodes[node] for node in nodes if node in self.nodes)
                for port in ports
            )
            for group, nodes in self.members.items()
        }

    def change(self, schema: Schema, update: GroupUpdate) -> Iterator[tuple[str, Any]]:
        """Yield what to write: nodes come before the group that has them, and go after it."""
        table, group = schema.table(_GROUPS), update.group
        old = self.members.pop(group, ())
        wanted = {} if update.verb is Verb.DELETE else _nodes(group, update.replicas)
        for node, (rid, ports) in wanted.items():
            if self.nodes.get(node) != (rid, ports):
                values: dict[str, _Value] = {_RID: rid, _LAGS: [], _PORTS: list(ports)}
                verb = "MODIFY" if node in self.nodes else "INSERT"
                yield verb, _entry(schema.table(_NODES), _NODE, node, values)
                self.nodes[node] = (rid, ports)
        if update.verb is Verb.DELETE:
            yield "DELETE", _entry(table, _GROUP, group)
        else:
            none = [0] * len(wanted)
            values = {_NODE: list(wanted), _XID_VALID: none, _XID: none}
            yield update.verb.value, _entry(table, _GROUP, group, values)
            self.members[group] = tuple(wanted)
        for node in old:
            if node not in wanted and self.nodes.pop(node, None) is not None:
                yield "DELETE", _entry(schema.table(_NODES), _NODE, node)


def selections(schema: Schema) -> list[Any]:
    """Return what selects all groups, and all nodes."""
    return [bfruntime_pb2.TableEntry(table_id=schema.table(name).id) for name in (_GROUPS, _NODES)]


def read(schema: Schema, entries: Iterable[Any]) -> Groups:
    """Return the groups that entries read from a switch describe."""
    found = Groups()
    for entry in entries:
        table = schema.with_id(entry.table_id)
        number = int.from_bytes(entry.key.fields[0].exact.value, "big")
        names = {one.id: one.name for one in table.data}
        said: defaultdict[str, _Value] = defaultdict(list)
        said.update((names[one.field_id], datum(one)) for one in entry.data.fields if one.field_id in names)
        if table.name == _GROUPS:
            found.members[number] = tuple(_list(said[_NODE]))
        else:
            found.nodes[number] = (_list(said[_RID])[0], tuple(sorted(_list(said[_PORTS]))))
    return found


def _nodes(group: int, replicas: Iterable[Replica]) -> dict[int, tuple[int, tuple[int, ...]]]:
    ports: defaultdict[int, list[int]] = defaultdict(list)
    for replica in sorted(replicas):
        ports[replica.rid].append(replica.port)
    return {group * _RIDS + rid: (rid, tuple(own)) for rid, own in sorted(ports.items())}


def _entry(table: Table, key: str, number: int, values: dict[str, _Value] | None = None) -> Any:
    entry = bfruntime_pb2.TableEntry(table_id=table.id)
    entry.key.CopyFrom(key_message(table, ((key, number),)))
    fields = {one.name: one for one in table.data}
    for name, value in (values or {}).items():
        set_datum(fields[name], value, entry.data.fields.add())
    return entry


def _list(value: _Value) -> list[int]:
    return value if isinstance(value, list) else [int(value)]
