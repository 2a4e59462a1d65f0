# SPDX-License-Identifier: Apache-2.0
"""A Tofino's BfRuntime service without a Tofino: it keeps tables, and refuses what their schema forbids.

The schema is what a switch would have: the program's tables from p4c-barefoot (``p4src/tna/bfrt.json``), and
the chip's from the drivers (``tofino_chip.json``: tables of bf_rt_pre, bf_rt_mirror, bf_rt_port and bf_rt_tm
for Tofino 1 in p4lang/open-p4studio, Apache-2.0). Clients, binding, batches and errors are as in that
repository's ``bf_rt_server``, and no more lenient.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from softp4 import protobuf
from softp4.p4runtime.codes import Code
from weir import p4src
from weir.controller.bfrt.messages import METHODS, bfruntime_pb2, status_pb2
from weir.controller.bfrt.schema import PRIORITY, Field, Schema, Table

PROGRAM_TABLES: Final = (p4src.BUILD.parent / "tna" / "bfrt.json").read_bytes()
CHIP_TABLES: Final = (Path(__file__).parent / "tofino_chip.json").read_bytes()
INDEXED: Final = ("Register", "Counter")
_NODES, _GROUPS, _NODE_ID = "$pre.node", "$pre.mgid", "$MULTICAST_NODE_ID"
_PIPES: Final = 4
_PORT_QUEUES: Final = 8
_Config: Final = bfruntime_pb2.SetForwardingPipelineConfigRequest


class RefusedError(Exception):
    """One part of a request, and why it is refused."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code


class FakeTofino:
    """The service, at ``address`` from ``start`` to ``stop``; after that it is empty.

    Args:
        programs: by name, the tables of what runs.
        credentials: for TLS.
    """

    def __init__(
        self, programs: dict[str, bytes] | None = None, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.programs = {"weir_tna": PROGRAM_TABLES} if programs is None else programs
        self.writes: list[tuple[str, Table, Any]] = []  # accepted: verb, table, entry
        self.tables: dict[str, dict[bytes, Any]] = {}
        self.queues: dict[tuple[int, ...], dict[str, str | bool]] = {}  # by pipe, port group, number there
        self.address = "127.0.0.1:0"
        self._credentials = credentials
        self._clients: dict[int, str] = {}  # subscribed: the program that each is bound to
        self._server: Any = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Serve, empty, at the same address as ever."""
        self.tables.clear()
        self.queues.clear()
        self._clients.clear()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((protobuf.handler(self, METHODS),))
        if self._credentials is None:
            port = self._server.add_insecure_port(self.address)
        else:
            port = self._server.add_secure_port(self.address, self._credentials)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        """Go away, as in a power cut."""
        if self._server is not None:
            self._server.stop(None).wait()

    def schema(self, client: int) -> Schema:
        """Return the tables that a client may use."""
        return Schema.parse(self.programs[self._clients[client]], CHIP_TABLES)

    def StreamChannel(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        client = None
        try:
            for request in requests:
                if client is not None or request.WhichOneof("update") != "subscribe":
                    continue
                with self._lock:
                    if request.client_id in self._clients:
                        context.abort(
                            grpc.StatusCode.INVALID_ARGUMENT, "Can't have two clients with the same client id"
                        )
                    self._clients[request.client_id] = ""
                client = request.client_id
                reply = bfruntime_pb2.StreamMessageResponse()
                reply.subscribe.status.code = Code.OK
                yield reply
        finally:
            if client is not None:
                self._clients.pop(client, None)

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if request.client_id not in self._clients:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"Unknown client. Client_id:{request.client_id}"
            )
        if request.action != _Config.BIND or len(request.config) != 1:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "BIND takes one program")
        name = request.config[0].p4_name
        with self._lock:
            if name not in self.programs:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no program {name}")
            if name in self._clients.values():
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"program {name} has a client")
            self._clients[request.client_id] = name
        return bfruntime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if request.device_id != 0:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no device {request.device_id}")
        reply = bfruntime_pb2.GetForwardingPipelineConfigResponse()
        for name, tables in self.programs.items():
            reply.config.add(p4_name=name, bfruntime_info=tables)
        reply.non_p4_config.bfruntime_info = CHIP_TABLES
        return reply

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        schema = self._bound(request, context)
        errors = []
        for update in request.updates:
            error = bfruntime_pb2.Error()
            try:
                self._write(schema, bfruntime_pb2.Update.Type.Name(update.type), update.entity.table_entry)
            except RefusedError as why:
                error.canonical_code, error.message = why.code, str(why)
            errors.append(error)
        self._fail(errors, context)
        return bfruntime_pb2.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        schema = self._bound(request, context)
        reply, errors = bfruntime_pb2.ReadResponse(), []
        for entity in request.entities:
            error = bfruntime_pb2.Error()
            try:
                if entity.HasField("table_usage"):
                    used = _table(schema, entity.table_usage)
                    usage = reply.entities.add().table_usage
                    usage.table_id, usage.usage = used.id, len(self.entries(used.name))
                else:
                    for entry in self._read(schema, entity.table_entry):
                        reply.entities.add().table_entry.CopyFrom(entry)
            except RefusedError as why:
                error.canonical_code, error.message = why.code, str(why)
            errors.append(error)
        yield reply
        self._fail(errors, context)

    def entries(self, table: str) -> list[Any]:
        """Return what a table holds."""
        return list(self.tables.get(table, {}).values())

    def forget(self, table: str) -> None:
        """Lose all entries of a table, as somebody at the switch's own console would."""
        self.tables.pop(table, None)

    def _bound(self, request: Any, context: grpc.ServicerContext) -> Schema:
        if not self._clients.get(request.client_id):
            context.abort(grpc.StatusCode.NOT_FOUND, "Bound config not found")
        if request.target.device_id != 0 or request.target.pipe_id != 0xFFFF:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "tables are the same in all pipes of device 0")
        return self.schema(request.client_id)

    def _fail(self, errors: list[Any], context: grpc.ServicerContext) -> None:
        if all(error.canonical_code == Code.OK for error in errors):
            return
        status = status_pb2.Status(code=Code.UNKNOWN, message="Error Status")
        for error in errors:
            status.details.add().Pack(error)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.UNKNOWN, "Error Status")

    def _write(self, schema: Schema, verb: str, entry: Any) -> None:
        table = _table(schema, entry)
        key = _checked_key(table, entry)
        if table.kind.startswith("TmQueue"):
            self._set_queue(table, verb, entry)
            self.writes.append((verb, table, entry))
            return
        own = self.tables.setdefault(table.name, {})
        if verb not in ("INSERT", "MODIFY", "DELETE"):
            raise RefusedError(Code.INVALID_ARGUMENT, f"{verb} is not what Weir writes")
        if verb == "DELETE":
            if table.kind in INDEXED:
                raise RefusedError(Code.UNIMPLEMENTED, "cells are not deleted")
            if key not in own:
                raise RefusedError(Code.NOT_FOUND, "Table Entry delete failed")
            self._unused(table, entry)
            del own[key]
        else:
            _check_data(table, entry, whole=verb == "INSERT")
            if table.kind in INDEXED:
                if verb == "INSERT" or int.from_bytes(entry.key.fields[0].exact.value, "big") >= table.size:
                    raise RefusedError(Code.INVALID_ARGUMENT, "no such cell")
            elif (key in own) != (verb == "MODIFY"):
                code = Code.ALREADY_EXISTS if verb == "INSERT" else Code.NOT_FOUND
                raise RefusedError(code, f"Table {verb.lower()} failed")
            elif len(own) >= table.size and verb == "INSERT":
                raise RefusedError(Code.RESOURCE_EXHAUSTED, f"table has {table.size} entries")
            self._check_group(table, entry)
            kept = bfruntime_pb2.TableEntry()
            kept.CopyFrom(own.get(key, entry))
            kept.data.action_id = entry.data.action_id
            given = {field.field_id for field in entry.data.fields}
            same = [f for f in kept.data.fields if f.field_id not in given and not table.actions]
            fields = [*same, *entry.data.fields]
            del kept.data.fields[:]
            kept.data.fields.extend(fields)
            own[key] = kept
        self.writes.append((verb, table, entry))

    def _set_queue(self, table: Table, verb: str, entry: Any) -> None:
        """Change a queue, which is always there, in the one pipe that is meant."""
        if verb != "MODIFY" or not entry.HasField("entry_tgt") or entry.entry_tgt.pipe_id >= _PIPES:
            raise RefusedError(Code.INVALID_ARGUMENT, "queues of a pipe are modified")
        _check_data(table, entry, whole=False)
        place = (entry.entry_tgt.pipe_id, *(field.exact.value[0] for field in entry.key.fields))
        values = {field.id: field.name for field in table.data}
        queue = self.queues.setdefault(place, {})
        queue.update({values[d.field_id]: d.str_val or d.bool_val for d in entry.data.fields})

    def _port(self, table: Table, entry: Any) -> Any:
        """Return where a port's queues are: four ports share a group, and its queues."""
        _checked_key(table, entry)
        port = int.from_bytes(entry.key.fields[0].exact.value, "big")
        group, place = divmod(port % 128, 4)
        told = bfruntime_pb2.TableEntry()
        told.CopyFrom(entry)
        for field in table.data:
            if field.name == "pg_id":
                told.data.fields.add(field_id=field.id, stream=group.to_bytes(1, "big"))
            elif field.name == "egress_qid_queues":
                queues = range(_PORT_QUEUES * place, _PORT_QUEUES * (place + 1))
                told.data.fields.add(field_id=field.id).int_arr_val.val.extend(queues)
        return told

    def _check_group(self, table: Table, entry: Any) -> None:
        if table.name != _GROUPS:
            return
        lists = [_list(field) for field in entry.data.fields]
        if len({len(one) for one in lists}) != 1:
            raise RefusedError(Code.INVALID_ARGUMENT, "lists of different lengths")
        nodes = {number.to_bytes(4, "big") for number in _list(_field(table, entry, _NODE_ID))}
        known = {e.key.fields[0].exact.value for e in self.entries(_NODES)}
        if nodes - known:
            raise RefusedError(Code.NOT_FOUND, f"no nodes {sorted(nodes - known)}")
        for other in self.entries(_GROUPS):
            same = other.key.fields[0].exact.value == entry.key.fields[0].exact.value
            if not same and nodes & {n.to_bytes(4, "big") for n in _list(_field(table, other, _NODE_ID))}:
                raise RefusedError(Code.INVALID_ARGUMENT, "a node is in one group only")

    def _unused(self, table: Table, entry: Any) -> None:
        """Refuse to delete a node that a group has."""
        if table.name == _NODES:
            groups = Schema.parse(CHIP_TABLES).table(_GROUPS)
            number = int.from_bytes(entry.key.fields[0].exact.value, "big")
            if any(number in _list(_field(groups, group, _NODE_ID)) for group in self.entries(_GROUPS)):
                raise RefusedError(Code.FAILED_PRECONDITION, f"node {number} is in use")

    def _read(self, schema: Schema, wanted: Any) -> Iterator[Any]:
        table = _table(schema, wanted)
        if table.kind == "TmPortCfg":
            yield self._port(table, wanted)
            return
        if wanted.HasField("key"):
            raise RefusedError(Code.UNIMPLEMENTED, "whole tables are what Weir reads")
        if table.kind in INDEXED:
            for index in range(table.size):
                yield self._cell(table, index)
            return
        for entry in self.entries(table.name):
            yield _told(table, entry)
        if table.kind == "MatchAction_Direct":
            yield bfruntime_pb2.TableEntry(table_id=table.id, is_default_entry=True)

    def _cell(self, table: Table, index: int) -> Any:
        entry = bfruntime_pb2.TableEntry(table_id=table.id)
        entry.key.fields.add(field_id=table.keys[0].id).exact.value = index.to_bytes(4, "big")
        kept = self.tables.get(table.name, {}).get(entry.key.SerializeToString(deterministic=True), entry)
        given = {field.field_id: field.stream for field in kept.data.fields}
        for field in table.data:
            for _ in range(_PIPES if table.kind == "Register" else 1):
                entry.data.fields.add(field_id=field.id, stream=given.get(field.id, bytes(field.bytes)))
        return entry


def _table(schema: Schema, entry: Any) -> Table:
    try:
        return schema.with_id(entry.table_id)
    except LookupError as error:
        raise RefusedError(Code.NOT_FOUND, str(error)) from None


def _checked_key(table: Table, entry: Any) -> bytes:
    """Return a key as bytes that are the same for the same key."""
    fields = {field.field_id: field for field in entry.key.fields}
    if len(fields) != len(entry.key.fields) or set(fields) != {field.id for field in table.keys}:
        raise RefusedError(Code.INVALID_ARGUMENT, f"not the keys of {table.name}: {sorted(fields)}")
    for field in table.keys:
        given = fields[field.id]
        if given.WhichOneof("match_type") != field.match.lower():
            raise RefusedError(Code.INVALID_ARGUMENT, f"{field.name} is matched otherwise")
        if field.match == "Ternary":
            value, mask = given.ternary.value, given.ternary.mask
            _check_number(field, mask)
            if bytes(a & ~b & 0xFF for a, b in zip(value, mask, strict=False)).strip(b"\0"):
                raise RefusedError(Code.INVALID_ARGUMENT, f"{field.name} has bits that its mask has not")
        else:
            value = given.exact.value
        _check_number(field, value)
        if field.name == PRIORITY and int.from_bytes(value, "big") >= 1 << 24:
            raise RefusedError(Code.INVALID_ARGUMENT, "a priority has 24 bits")
    same = bfruntime_pb2.TableKey(fields=[fields[number] for number in sorted(fields)])
    key: bytes = same.SerializeToString(deterministic=True)
    return key


def _check_number(field: Field, value: bytes) -> None:
    if len(value) != field.bytes or int.from_bytes(value, "big") >> field.width:
        raise RefusedError(Code.INVALID_ARGUMENT, f"{field.name} has {field.width} bits, not {value.hex()}")


def _check_data(table: Table, entry: Any, *, whole: bool) -> None:
    try:
        action = table.action_with_id(entry.data.action_id)
    except LookupError as error:
        raise RefusedError(Code.INVALID_ARGUMENT, str(error)) from None
    if table.actions and not action:
        raise RefusedError(Code.INVALID_ARGUMENT, "no action")
    fields = {field.id: field for field in table.fields(action)}
    given = [datum.field_id for datum in entry.data.fields]
    if len(set(given)) != len(given):
        raise RefusedError(Code.INVALID_ARGUMENT, "a datum is given twice")
    needed = {field.id for field in fields.values() if field.needed}
    if (whole or table.kind != "PreNode") and needed - set(given):
        missing = [fields[number].name for number in needed - set(given)]
        raise RefusedError(Code.INVALID_ARGUMENT, f"data are missing: {missing}")
    for datum in entry.data.fields:
        field = fields.get(datum.field_id)
        if field is None or not field.settable:
            raise RefusedError(Code.INVALID_ARGUMENT, f"no datum {datum.field_id} to set")
        _check_datum(field, datum)


def _check_datum(field: Field, datum: Any) -> None:
    number = "bool_val" if field.kind == "bool" else "str_val" if field.kind == "string" else "stream"
    lists = {"bool_val": "bool_arr_val", "stream": "int_arr_val"}
    kind = lists[number] if field.repeated else number
    if datum.WhichOneof("value") != kind:
        raise RefusedError(Code.INVALID_ARGUMENT, f"{field.name} is no {datum.WhichOneof('value')}")
    if kind == "stream":
        _check_number(field, datum.stream)
    elif kind == "int_arr_val" and any(value >> field.width for value in datum.int_arr_val.val):
        raise RefusedError(Code.INVALID_ARGUMENT, f"{field.name} has {field.width} bits")
    elif kind == "str_val" and datum.str_val not in _choices(field.name):
        raise RefusedError(Code.INVALID_ARGUMENT, f"{field.name} cannot be {datum.str_val}")


def _choices(name: str) -> list[str]:
    for table in json.loads(CHIP_TABLES)["tables"]:
        for datum in table["data"]:
            if datum["singleton"]["name"] == name:
                return list(datum["singleton"]["type"]["choices"])
    return []


def _told(table: Table, entry: Any) -> Any:
    """Return an entry as a switch tells it: with everything that it has, whoever set it."""
    told = bfruntime_pb2.TableEntry()
    told.CopyFrom(entry)
    given = {field.field_id for field in told.data.fields}
    for field in table.fields(table.action_with_id(entry.data.action_id)):
        if field.id not in given and field.kind in ("bool", "uint32", "uint64") and not field.repeated:
            more = told.data.fields.add(field_id=field.id)
            if field.kind == "bool":
                more.bool_val = False
            else:
                more.stream = bytes(field.bytes)
    return told


def _field(table: Table, entry: Any, name: str) -> Any:
    (number,) = (field.id for field in table.data if field.name == name)
    (found,) = (field for field in entry.data.fields if field.field_id == number)
    return found


def _list(datum: Any) -> list[int]:
    return list(getattr(datum, datum.WhichOneof("value")).val)
