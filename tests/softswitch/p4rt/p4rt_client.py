# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell's client layer, with names instead of ids: how the tests talk to a switch."""

import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from p4runtime_sh.context import Context
from p4runtime_sh.p4runtime import P4RuntimeClient, P4RuntimeWriteException, SSLOptions

PATIENCE = 30.0  # seconds until a switch that does not answer counts as broken
FOLDER = Path(__file__).parents[1] / "p4"
CONTROL = FOLDER / "control.json"
CONTROL_INFO = FOLDER / "control.p4info.txtpb"
DEVICE = 1

Match = Mapping[str, tuple[str, Any, Any] | tuple[str, Any]]


def number(value: int) -> bytes:
    """Return the canonical byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _unpack(detail: Any) -> Any:
    error = p4rt.Error()
    assert detail.Unpack(error)
    return error


class Controller:
    """One controller session. ``election`` is the low half of the election id."""

    def __init__(
        self,
        address: str,
        *,
        election: int = 1,
        role: str | None = None,
        device: int = DEVICE,
        tls: SSLOptions | None = None,
    ) -> None:
        self.client = P4RuntimeClient(device, address, (0, election), role, tls)
        self.context = Context()

    def push(self, program: Path = CONTROL, info: Path = CONTROL_INFO) -> None:
        """VERIFY_AND_COMMIT, as every p4runtime-shell session starts."""
        self.client.set_fwd_pipe_config(info, program)
        self.learn()

    def learn(self) -> None:
        """Take the P4Info from the switch."""
        self.context.set_p4info(self.client.get_p4info())

    def set_config(
        self, action: int, program: bytes | None, info: Path = CONTROL_INFO, cookie: int = 0
    ) -> None:
        """SetForwardingPipelineConfig with any action; no program, no config."""
        from google.protobuf import text_format

        request = p4rt.SetForwardingPipelineConfigRequest(device_id=DEVICE, action=action)
        request.election_id.low = self.client.election_id[1]
        if program is not None:
            request.config.p4_device_config = program
            request.config.cookie.cookie = cookie
            text_format.Parse(info.read_text(), request.config.p4info)
        self.client.stub.SetForwardingPipelineConfig(request, timeout=PATIENCE)

    def entry(
        self,
        table: str,
        match: Match | None = None,
        action: str | None = None,
        args: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Any:
        """Return a TableEntry. ``match`` is field name -> (kind, value, mask or prefix length or high)."""
        entry = p4rt.TableEntry(table_id=self.context.get_table_id(table), **fields)
        for name, (kind, *values) in (match or {}).items():
            field = entry.match.add(field_id=self.context.get_mf_id(table, name))
            part = getattr(field, kind)
            if kind == "lpm":
                part.value, part.prefix_len = number(values[0]), values[1]
            elif kind == "ternary":
                part.value, part.mask = number(values[0]), number(values[1])
            elif kind == "range":
                part.low, part.high = number(values[0]), number(values[1])
            else:
                part.value = number(values[0])
        if action is not None:
            entry.action.action.action_id = self.context.get_action_id(action)
            for name, value in (args or {}).items():
                param = self.context.get_param_id(action, name)
                entry.action.action.params.add(param_id=param, value=number(value))
        return entry

    def station(self, dst: int, action: str = "forward", args: Mapping[str, int] | None = None) -> Any:
        """Return an entry of the table `stations`; forwards to port 2 unless told otherwise."""
        return self.entry("stations", {"dst": ("exact", dst)}, action, {"port": 2} if args is None else args)

    def write(self, kind: str, **entity: Any) -> None:
        """One update; ``kind`` is INSERT, MODIFY or DELETE."""
        update = p4rt.Update(type=p4rt.Update.Type.Value(kind), entity=p4rt.Entity(**entity))
        self.client.write_update(update)

    def write_all(self, kind: str, entries: Sequence[Any]) -> None:
        """Several table entries in one batch."""
        request = p4rt.WriteRequest()
        for entry in entries:
            update = request.updates.add(type=p4rt.Update.Type.Value(kind))
            update.entity.table_entry.CopyFrom(entry)
        self.client.write(request)

    def batch_codes(self, kind: str, entries: Sequence[Any]) -> list[str]:
        """Return the same for a batch that is refused in part: the code of each update.

        Not through p4runtime-shell's `write`, whose reading of the details never gets past an OK.
        """
        request = p4rt.WriteRequest(device_id=DEVICE)
        request.election_id.low = self.client.election_id[1]
        for entry in entries:
            update = request.updates.add(type=p4rt.Update.Type.Value(kind))
            update.entity.table_entry.CopyFrom(entry)
        try:
            self.client.stub.Write(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNKNOWN
            status = status_pb2.Status()
            status.ParseFromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
            return [code_pb2.Code.Name(_unpack(detail).canonical_code) for detail in status.details]
        return ["OK"] * len(entries)

    def refused(self, kind: str, **entity: Any) -> tuple[str, str]:
        """Return the code's name and the message with which a write is refused."""
        try:
            self.write(kind, **entity)
        except P4RuntimeWriteException as error:
            [(_, detail)] = error.errors
            return code_pb2.Code.Name(detail.canonical_code), detail.message
        raise AssertionError(f"accepted: {kind} {entity}")

    def read(self, **entity: Any) -> list[Any]:
        """Return the entities that one request entity selects, without the Entity around them."""
        (kind,) = entity
        answers = self.client.read_one(p4rt.Entity(**entity))
        return [getattr(found, kind) for answer in answers for found in answer.entities]

    def group(self, number_: int, replicas: Sequence[tuple[int, int]], **fields: Any) -> Any:
        """Return a PacketReplicationEngineEntry for a multicast group of (port, instance)."""
        message = p4rt.PacketReplicationEngineEntry()
        message.multicast_group_entry.multicast_group_id = number_
        for port, instance in replicas:
            message.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
        for name, value in fields.items():
            setattr(message.multicast_group_entry, name, value)
        return message

    def packet_out(self, payload: bytes, metadata: Mapping[int, int]) -> None:
        """Send a packet with metadata id -> value."""
        request = p4rt.StreamMessageRequest()
        request.packet.payload = payload
        for identity, value in metadata.items():
            request.packet.metadata.add(metadata_id=identity, value=number(value))
        self.client.stream_out_q.put(request)

    def stream(self, kind: str) -> Any:
        """Return the next message of a kind ("packet", "arbitration", "unknown") on the stream."""
        message = self.client.get_stream_packet(kind, timeout=PATIENCE)
        assert message is not None, f"no {kind} on the stream"
        return message

    def nothing_on_stream(self, kind: str) -> bool:
        """Return whether no message of that kind is waiting."""
        try:
            self.client.stream_in_q[kind].get_nowait()
        except queue.Empty:
            return True
        return False

    @staticmethod
    def capabilities(channel: grpc.Channel) -> str:
        """Return the API version that a switch names, over any channel."""
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        return str(stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=PATIENCE).p4runtime_api_version)

    def close(self) -> None:
        """End the session."""
        self.client.tear_down()


def all_entries(controller: Controller, table: str) -> list[object]:
    """Return all entries of a table."""
    return controller.read(table_entry=controller.entry(table))
