# SPDX-License-Identifier: Apache-2.0
"""Whatever a controller sends, the switch answers with a status, keeps its promises, and goes on serving."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from softp4.p4runtime.codes import Code
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from tests.harness.effort import effort
from tests.harness.switch_process import SwitchProcess
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT
from tests.p4rt.p4rt_fuzz import ELECTION, Generator, spoilt
from tests.p4rt.p4rt_stream import Connection, arbitration, write_errors
from tests.programs import FOLDER

CASES = effort(15, 1000)
_SERVICE = "/p4.v1.P4Runtime/"
_PROGRAMS = ("control", "meters", "profiles", "types", "value_sets")  # between them, every entity
_REFUSALS = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
}

fuzzed = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def _info(name: str) -> Any:
    info = p4info_pb2.P4Info()
    text_format.Parse((FOLDER / f"{name}.p4info.txtpb").read_text(), info)
    return info


GENERATORS = {name: Generator(_info(name)) for name in _PROGRAMS}


class Target:
    """A switch in a process of its own, and its primary controller."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._process = SwitchProcess("soft", folder, ["--log-level", "warning"])
        self._process.start()
        self._connection = Connection(self._process.address, [("grpc.max_metadata_size", 1 << 20)])
        self.channel = self._connection.channel
        self.stub = self._connection.stub
        self._primary = self._connection.stream(arbitration((1 << 128) - 1), timeout=None)
        assert self._primary.status()[0] == "OK"

    def push(self, name: str) -> None:
        """Make it run a program, empty."""
        request = p4rt.SetForwardingPipelineConfigRequest(device_id=1, election_id=ELECTION)
        request.action = request.VERIFY_AND_COMMIT
        request.config.p4info.CopyFrom(GENERATORS[name].info)
        request.config.p4_device_config = (FOLDER / f"{name}.json").read_bytes()
        self.stub.SetForwardingPipelineConfig(request, timeout=TIMEOUT)

    def call(self, method: str, data: bytes, streamed: bool = False) -> str:
        """Return the name of the status with which a call of raw bytes is answered."""
        kind = self.channel.unary_stream if streamed else self.channel.unary_unary
        try:
            answer = kind(_SERVICE + method)(data, timeout=TIMEOUT)
            if streamed:
                for _ in answer:
                    pass
        except grpc.RpcError as error:
            return _name(error)
        return "OK"

    def state(self) -> list[bytes]:
        """Return all that can be read, but for what the program's time changes."""
        request = p4rt.ReadRequest(device_id=1)
        for kind in ("table_entry", "counter_entry", "register_entry", "packet_replication_engine_entry"):
            getattr(request.entities.add(), kind).SetInParent()
        request.entities.add().table_entry.is_default_action = True
        answers = self.stub.Read(request, timeout=TIMEOUT)
        found = [
            entity.SerializeToString(deterministic=True) for answer in answers for entity in answer.entities
        ]
        return sorted(found)

    def check(self) -> None:
        """It serves, what it says can be said to it, and it has met nothing that nobody thought of."""
        before = self.state()
        write = p4rt.WriteRequest(device_id=1, election_id=ELECTION)
        for data in before:
            update = write.updates.add(type=p4rt.Update.MODIFY)
            update.entity.ParseFromString(data)
            if update.entity.table_entry.is_const or _constant_default(update.entity):
                del write.updates[-1]
        try:
            self.stub.Write(write, timeout=TIMEOUT)
        except grpc.RpcError as error:
            errors = write_errors(error)
            pairs = zip(write.updates, errors, strict=True)
            raise AssertionError(
                [(str(update), *said) for update, said in pairs if said[0] != "OK"]
            ) from error
        assert self.state() == before
        self.push("control")
        assert not [line for line in self._log.read_text().splitlines() if "Traceback" in line], self.log()

    def log(self) -> str:
        """Return what it logged."""
        return self._log.read_text()[-4000:]

    def close(self) -> None:
        """Stop it."""
        self._connection.close()
        self._process.stop()


def _constant_default(entity: Any) -> bool:
    if not entity.table_entry.is_default_action:
        return False
    tables = [table for generator in GENERATORS.values() for table in generator.info.tables]
    return any(
        table.preamble.id == entity.table_entry.table_id and table.const_default_action_id for table in tables
    )


def _name(error: grpc.RpcError) -> str:
    """Return the status' name; asserts that a batch's errors are those of its parts."""
    name: str = error.code().name
    if name == "UNKNOWN":
        codes = [code for code, _ in write_errors(error)]
        assert set(codes) <= _REFUSALS | {"OK"} and set(codes) != {"OK"}, codes
        assert Code[codes[0]] >= 0
    elif name == "INTERNAL":
        assert "deserializing" in error.details(), error.details()
    else:
        assert name in _REFUSALS, (name, error.details())
    return name


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tmp_path_factory.mktemp("switch"))
    yield made
    made.close()


@pytest.fixture(params=_PROGRAMS)
def fuzzed_program(request: pytest.FixtureRequest, target: Target) -> Iterator[str]:
    """Yield the switch runs a program while requests for it are fuzzed; afterwards it must be in order."""
    name: str = request.param
    target.push(name)
    yield name
    target.check()


def test_writes(target: Target, fuzzed_program: str) -> None:
    @fuzzed
    @given(GENERATORS[fuzzed_program].writes())
    def run(request: Any) -> None:
        before = target.state() if request.atomicity in (1, 2) else None
        answer = target.call("Write", request.SerializeToString())
        if answer != "OK" and before is not None:
            assert target.state() == before, request

    run()


def test_reads(target: Target, fuzzed_program: str) -> None:
    @fuzzed
    @given(GENERATORS[fuzzed_program].reads())
    def run(request: Any) -> None:
        target.call("Read", request.SerializeToString(), streamed=True)

    run()


def test_streams(target: Target, fuzzed_program: str) -> None:
    @fuzzed
    @given(GENERATORS[fuzzed_program].stream())
    def run(messages: list[Any]) -> None:
        try:
            for response in target.stub.StreamChannel(iter(messages), timeout=TIMEOUT):
                code = response.error.canonical_code
                assert not code or Code(code).name in _REFUSALS, response
        except grpc.RpcError as error:
            assert error.code().name in _REFUSALS, error

    run()


def test_spoilt_bytes(target: Target, fuzzed_program: str) -> None:
    generator = GENERATORS[fuzzed_program]
    calls: dict[str, st.SearchStrategy[Any]] = {
        "Write": generator.writes(),
        "Read": generator.reads(),
        "GetForwardingPipelineConfig": generator.gets(),
        "Capabilities": st.builds(p4rt.CapabilitiesRequest),
    }
    spoil: Callable[[tuple[str, Any]], st.SearchStrategy[tuple[str, bytes]]] = lambda call: st.tuples(  # noqa: E731
        st.just(call[0]), spoilt(call[1].SerializeToString())
    )
    requests = st.one_of([st.tuples(st.just(name), each) for name, each in calls.items()])

    @fuzzed
    @given(requests.flatmap(spoil))
    def run(call: tuple[str, bytes]) -> None:
        name, data = call
        target.call(name, data, streamed=name == "Read")

    run()


def test_configs(target: Target) -> None:
    @settings(fuzzed, max_examples=max(CASES // 10, 5))
    @given(GENERATORS["control"].configs(CONTROL.read_bytes()))
    def run(request: Any) -> None:
        target.call("SetForwardingPipelineConfig", request.SerializeToString())

    run()
    target.push("control")
    target.check()


def test_the_seeds_are_good(target: Target, fuzzed_program: str) -> None:
    """A fuzzer whose requests are all refused at the door finds nothing."""
    entities = GENERATORS[fuzzed_program].entities
    accepted = 0
    for entity in entities:
        request = p4rt.WriteRequest(device_id=1, election_id=ELECTION)
        request.updates.add(type=p4rt.Update.INSERT, entity=entity)
        answers = [target.call("Write", request.SerializeToString())]
        request.updates[0].type = p4rt.Update.MODIFY
        answers.append(target.call("Write", request.SerializeToString()))
        accepted += "OK" in answers
    assert accepted > len(entities) / 3, f"{accepted} of {len(entities)}"
