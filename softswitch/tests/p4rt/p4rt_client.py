# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime session with names instead of ids: how the tests talk to a switch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from softp4 import protobuf
from softp4.p4runtime.codes import Code
from softp4.p4runtime.errors import details
from softp4.p4runtime.names import Names
from softp4.p4runtime.schema import METHODS, p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.p4runtime.session import Session

TIMEOUT = 30.0  # seconds until a switch that does not answer counts as broken
FOLDER = Path(__file__).parents[1] / "p4"
CONTROL = FOLDER / "control.json"
CONTROL_INFO = FOLDER / "control.p4info.txtpb"
DEVICE = 1

Match = Mapping[str, tuple[str, Any, Any] | tuple[str, Any]]


def number(value: int) -> bytes:
    """Return the canonical byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Controller:
    """One controller session. ``election`` is the low half of the election id."""

    def __init__(
        self,
        address: str,
        *,
        election: int = 1,
        role: str | None = None,
        device: int = DEVICE,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.session = Session(
            address, device_id=device, election_id=election, role=role or "", credentials=credentials
        )
        told = self.stream("arbitration").arbitration
        assert told.device_id == device

    def push(self, program: Path = CONTROL, info: Path = CONTROL_INFO) -> None:
        """VERIFY_AND_COMMIT, and learn the names."""
        self.session.push(text_format.Parse(info.read_text(), p4info_pb2.P4Info()), program.read_bytes())
        self.learn()

    def learn(self) -> None:
        """Take the P4Info from the switch."""
        self.names = Names(self.session.p4info())

    def set_config(
        self, action: int, program: bytes | None, info: Path = CONTROL_INFO, cookie: int = 0
    ) -> None:
        """SetForwardingPipelineConfig with any action; no program, no config."""
        request = self.session.claimed(p4rt.SetForwardingPipelineConfigRequest(action=action))
        if program is not None:
            request.config.p4_device_config = program
            request.config.cookie.cookie = cookie
            text_format.Parse(info.read_text(), request.config.p4info)
        self.session.stub.SetForwardingPipelineConfig(request, timeout=TIMEOUT)

    def entry(
        self,
        table: str,
        match: Match | None = None,
        action: str | None = None,
        args: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Any:
        """Return a TableEntry. ``match`` is field name -> (kind, value, mask or prefix length or high)."""
        entry = p4rt.TableEntry(table_id=self.names.id("tables", table), **fields)
        for name, (kind, *values) in (match or {}).items():
            field = entry.match.add(field_id=self._known(self.names.field(table, name)))
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
            entry.action.action.action_id = self.names.id("actions", action)
            for name, value in (args or {}).items():
                param = self._known(self.names.param(action, name))
                entry.action.action.params.add(param_id=param, value=number(value))
        return entry

    @staticmethod
    def _known(member: Any) -> int:
        assert member is not None, "the P4Info does not have it"
        return int(member.id)

    def station(self, dst: int, action: str = "forward", args: Mapping[str, int] | None = None) -> Any:
        """Return an entry of the table `stations`; forwards to port 2 unless told otherwise."""
        return self.entry("stations", {"dst": ("exact", dst)}, action, {"port": 2} if args is None else args)

    def write(self, kind: str, **entity: Any) -> None:
        """One update; ``kind`` is INSERT, MODIFY or DELETE."""
        update = p4rt.Update(type=p4rt.Update.Type.Value(kind), entity=p4rt.Entity(**entity))
        self.session.write([update])

    def write_all(self, kind: str, entries: Sequence[Any]) -> None:
        """Several table entries in one batch."""
        verb = p4rt.Update.Type.Value(kind)
        self.session.write(
            [p4rt.Update(type=verb, entity=p4rt.Entity(table_entry=entry)) for entry in entries]
        )

    def batch_codes(self, kind: str, entries: Sequence[Any]) -> list[str]:
        """Return the same for a batch that is refused in part: the code of each update."""
        try:
            self.write_all(kind, entries)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNKNOWN
            return [Code(each.canonical_code).name for each in details(error)]
        return ["OK"] * len(entries)

    def refused(self, kind: str, **entity: Any) -> tuple[str, str]:
        """Return the code's name and the message with which a write is refused."""
        try:
            self.write(kind, **entity)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNKNOWN:
                raise
            [detail] = details(error)
            return Code(detail.canonical_code).name, detail.message
        raise AssertionError(f"accepted: {kind} {entity}")

    def read(self, **entity: Any) -> list[Any]:
        """Return the entities that one request entity selects, without the Entity around them."""
        (kind,) = entity
        return [getattr(found, kind) for found in self.session.read(p4rt.Entity(**entity))]

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
        self.session.send(request)

    def stream(self, kind: str) -> Any:
        """Return the next message of a kind ("packet", "arbitration", "error") on the stream."""
        message = self.session.receive(kind, TIMEOUT)
        assert message is not None, f"no {kind} on the stream"
        return message

    def nothing_on_stream(self, kind: str) -> bool:
        """Return whether no message of that kind is waiting."""
        return self.session.receive(kind, 0.0) is None

    @staticmethod
    def capabilities(channel: grpc.Channel) -> str:
        """Return the API version that a switch names, over any channel."""
        stub = protobuf.stub(channel, METHODS)
        return str(stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=TIMEOUT).p4runtime_api_version)

    def close(self) -> None:
        """End the session."""
        self.session.close()


def all_entries(controller: Controller, table: str) -> list[object]:
    """Return all entries of a table."""
    return controller.read(table_entry=controller.entry(table))
