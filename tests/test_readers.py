# SPDX-License-Identifier: Apache-2.0
"""The readers of files and messages: each takes what it is given, or raises the error that it documents.

Damage is that of ``tests.harness.damage``. A reader whose files have a checksum takes nothing but what was
written. Programs of the switch and P4Runtime messages have fuzzers of their own (``softswitch/tests``).
"""

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from softp4.dataplane.pcap import CaptureError, read_capture
from softp4.native.json_text import parse_json, parse_record
from tests.controller.helpers import job
from tests.harness.damage import check_file, check_message
from weir.bench.grid import Journal as GridJournal
from weir.controller import memory
from weir.controller.bfrt.schema import Schema
from weir.controller.memory import Memory, StateFileError
from weir.controller.program import ProgramError, load_program
from weir.controller.topology import Topology, TopologyError, leaf_spine, load_topology, single_switch
from weir.host_agent.compression.loss_policy import LossPolicy, LossPolicyError
from weir.host_agent.parameter_server import commands
from weir.host_agent.parameter_server.journal import Journal, JournalError
from weir.host_agent.parameter_server.messages import Kind, Message, MessageError
from weir.host_agent.parameter_server.payload import PayloadError
from weir.host_agent.parameter_server.routing import ParameterInfo, Units
from weir.host_agent.parameter_server.terms import OptimizerSpec, Terms
from weir.host_agent.placement.hashing import Buckets
from weir.host_agent.placement.samples import svmlight_samples
from weir.host_agent.placement.traffic import Placement, PlacementError
from weir.host_agent.torch.connection import Facts
from weir.host_agent.torch.packed_state import checksum_of, pack_state, unpack_state
from weir.host_agent.torch.parameter_server.flow_rendezvous import CallOfWorker, Place
from weir.host_agent.torch.parameter_server.flow_server import open_state
from weir.host_agent.torch.point_to_point import frames
from weir.host_agent.torch.rendezvous import Introduction, Rendezvous
from weir.p4src import BUILD
from weir.partition.planfile import PlanFile, Source
from weir.pcap.frames import CaptureError as TracedError
from weir.pcap.frames import read_frames
from weir.train import messages as training

ONE, RACKS = single_switch(4, "127.0.0.1:1"), leaf_spine(2, 2, 2)
TERMS = Terms(
    2,
    1,
    (ParameterInfo("a.weight", (3, 4)), ParameterInfo("b", ())),
    OptimizerSpec("SGD", ({"lr": 0.1, "nesterov": False},)),
    consistency="ssp:3",
    push_filter="0.01:lr:256",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where it is available: files are written many thousand times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def of_two_racks() -> memory.Job:
    wide = job("wide", RACKS, size=4)
    wide.switches = ("leaf1", "leaf2", "spine1", "spine2")
    wide.parents = wide.uplinks = frozenset({"spine1", "spine2"})
    return wide


# ---------------------------------------------------------------------------------------------------- files


def test_state_files_of_the_controller_are_taken_as_they_were_written_only(folder: Path) -> None:
    path = folder / "state.json"
    Memory(path).save([job("a", ONE, size=1)])
    check_file(path, lambda path: Memory(path).load(ONE), StateFileError, sealed=True, flips=10_000)


@pytest.mark.parametrize(("topology", "made"), [(ONE, job("a", ONE, size=2)), (RACKS, of_two_racks())])
def test_a_state_file_with_a_checksum_and_odd_jobs_is_loaded_or_refused(
    folder: Path, topology: Topology, made: memory.Job
) -> None:
    """As another version would write it, or somebody who repairs one by hand."""
    path = folder / "state.json"
    path.write_text(memory._record(made).model_dump_json())

    def load_sealed(path: Path) -> None:
        try:
            record = memory._JobRecord.model_validate_json(path.read_bytes())
        except ValueError:
            raise StateFileError(path.name) from None
        path.write_text(memory._whole([record.model_dump_json()]))
        Memory(path).load(topology)

    check_file(path, load_sealed, StateFileError, flips=1000, others=50)


@pytest.mark.parametrize(
    "content",
    [
        b'{"jobs": []}',
        b'{"jobs": [], "format": "weir-controller-state-0", "sha256": ""}',
        b'{"jobs": [{"id": 77, "name": "a", "token": "t", "size": 2, "members": []}]}',
        b'{"jobs": [{"name": "\xff"}]}',
    ],
)
def test_a_state_file_of_another_version_says_so(folder: Path, content: bytes) -> None:
    path = folder / "state.json"
    path.write_bytes(content)
    with pytest.raises(
        StateFileError,
        match=r"state\.json: (it names no format|its format is|.*utf-8).*remove it to start without",
    ):
        Memory(path).load(ONE)


def checkpoint(folder: Path) -> Path:
    with Journal(folder) as journal:
        journal.append(b"1")
        journal.save({"n": np.arange(3), "w": np.linspace(0, 1, 40, dtype=np.float32)})
    return folder / "checkpoint.npz"


def replayed(folder: Path) -> tuple[list[Any], list[bytes]]:
    states: list[Any] = []
    records: list[bytes] = []
    with Journal(folder) as journal:
        journal.replay(states.append, records.append)
    return states, records


def test_checkpoints_are_taken_as_they_were_written_only(folder: Path) -> None:
    check_file(checkpoint(folder), lambda path: replayed(path.parent), JournalError, sealed=True)


def test_a_checkpoint_is_a_file_that_numpy_reads_and_one_without_checksum_is_refused(folder: Path) -> None:
    path = checkpoint(folder)
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    assert sorted(arrays) == ["n", "records", "w"]
    np.savez(path, **arrays)
    with pytest.raises(JournalError, match=r"checkpoint\.npz cannot be read .*another version"):
        replayed(folder)


def test_what_a_damaged_journal_gives_is_a_beginning_of_it(folder: Path) -> None:
    records = [b"one", b"two" * 20, b""]
    with Journal(folder) as journal:
        for record in records:
            journal.append(record)

    def load(path: Path) -> None:
        _, found = replayed(path.parent)
        assert found == records[: len(found)]

    check_file(folder / "journal", load, JournalError)


def test_a_state_of_damaged_terms_is_refused(folder: Path) -> None:
    open_state(folder, TERMS, 0).close()
    path = folder / "terms.json"
    check_file(
        path,
        lambda path: open_state(path.parent, TERMS, 0).close(),
        JournalError,
        sealed=True,
        flips=300,
        others=50,
    )


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_topologies(folder: Path, kind: str) -> None:
    path = folder / f"rack.{kind}"
    data = leaf_spine(2, 1, 1).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    path.write_text(json.dumps(data) if kind == "json" else yaml.safe_dump(data))
    check_file(path, load_topology, TopologyError, flips=500, others=60)


@pytest.mark.parametrize(
    "content",
    [
        b"switches: []\nhosts: \xff\n",
        b"\xff\xfes\0",
        b"switches: 2001-99-99",
        b"switches: " + b"9" * 5000,
        b"[" * 1500,
        b"? [switches]\n: x",
        b"a: &a [*a]",
        b"!!int x",
        b"!!timestamp x",
    ],
)
def test_texts_that_are_no_yaml_are_no_topologies(folder: Path, content: bytes) -> None:
    path = folder / "rack.yaml"
    path.write_bytes(content)
    with pytest.raises(TopologyError, match=r"rack\.yaml"):
        load_topology(path)


def plan_file(path: Path) -> Path:
    places = np.array([0, 1, 0, 1])
    buckets = Buckets(4, np.array([[0, 1, 2, 3, 0]]), np.array([[1, -1, 1, 1, 1]]))
    PlanFile(Source((path.parent,), 10, 5), Placement(2, places, places), buckets).save(path)
    return path


@pytest.mark.parametrize("load", [PlanFile.load, Placement.load])
def test_plans(folder: Path, load: Callable[[Path], object]) -> None:
    check_file(plan_file(folder / "plan.json"), load, PlacementError, flips=3000)


def test_a_plan_of_other_data_is_refused(folder: Path) -> None:
    data = folder / "samples.svm"
    data.write_text("1 0:1 3:1\n-1 1:1\n")
    source, places = Source((data,)), np.array([0, 1])
    plan = PlanFile(source, Placement(2, places, np.array([0, 1, 1, 0])), None)
    assert len(plan.samples()[0]) == 2
    data.write_text("1 0:1 3:1\n")
    with pytest.raises(PlacementError, match=r"of 2 samples, and .*samples\.svm has 1: make the plan again"):
        plan.samples()


def test_loss_policies(folder: Path) -> None:
    path = folder / "policy.json"
    LossPolicy.from_budget(0.05).save(path)
    check_file(path, LossPolicy.load, LossPolicyError, flips=2000)


def test_samples(folder: Path) -> None:
    path = folder / "samples.svm"
    path.write_text("1 3:0.5 17:1 # one\n-1 qid:3 4:1\n0.5 2147483647:1\n")
    check_file(path, svmlight_samples, ValueError)


def test_compiled_programs_are_taken_as_they_were_built_only(folder: Path) -> None:
    name = "weir_v1model"
    for file in BUILD.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    load_program(name, folder)
    path = folder / f"{name}.p4info.txtpb"
    content = path.read_bytes()
    for damaged in (b"", b"\xff" + content, content[:-9], content.replace(b"a", b"b", 1)):
        path.write_bytes(damaged)
        with pytest.raises(ProgramError, match=name):
            load_program(name, folder)


def test_tables_of_a_tofino() -> None:
    document = json.loads((BUILD.parent / "tna" / "bfrt.json").read_bytes())
    document["tables"] = document["tables"][:2]
    check_message(json.dumps(document).encode(), Schema.parse, ValueError, flips=500, others=50)


@pytest.mark.parametrize("ending", ["pcap", "pcapng"])
@pytest.mark.parametrize(("read", "error"), [(read_capture, CaptureError), (read_frames, TracedError)])
def test_captures(
    folder: Path, ending: str, read: Callable[[Path], Iterator[object]], error: type[Exception]
) -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
    from scapy.utils import PcapNgWriter, PcapWriter

    path = folder / f"seen.{ending}"
    with (PcapWriter if ending == "pcap" else PcapNgWriter)(str(path)) as writer:
        for size in (0, 30):
            writer.write(Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=9347) / bytes(size))
    check_file(path, lambda path: list(read(path)), error)


@dataclasses.dataclass
class Outcome:
    value: int


def test_journals_of_benchmarks_leave_out_what_is_damaged(folder: Path) -> None:
    path = folder / "grid.jsonl"
    GridJournal(path).put(("a", 1), Outcome(7))
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        path.write_bytes(
            content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]
        )
        GridJournal(path).get(("a", 1))


# ------------------------------------------------------------------------------------------------- messages


def json_of(record: Any) -> bytes:
    return json.dumps(asdict(record)).encode()


@pytest.mark.parametrize(
    "record",
    [
        Place("10.0.0.1", 9348, 77),
        CallOfWorker(1, 7, "10.0.0.1", 9348, 3, 4, 77),
        Facts(64, 0, "s1", "unix:/x"),
        Introduction("machine boot", "new_group([0, 1])", "", {"unix:/x": "h1"}),
        Rendezvous("unix:/x", "job", "token", {"0": "h1"}),  # type: ignore[dict-item]  # as JSON has it
    ],
)
def test_records_in_a_store_or_on_a_socket(record: Any) -> None:
    check_message(
        json_of(record), lambda data: parse_record(type(record), data), ValueError, flips=1000, others=60
    )


def test_states_that_ranks_send_to_each_other_are_taken_as_they_were_sent_only() -> None:
    sent = pack_state({"step": 3, "held": torch.arange(4.0)})
    assert unpack_state(sent)["held"].tolist() == [0.0, 1.0, 2.0, 3.0]

    def decode(data: bytes) -> object:
        return unpack_state(torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8))

    check_message(sent.numpy().tobytes(), decode, ValueError, sealed=True)
    other = pack_state({"step": 3, "held": torch.arange(4.0) + 1})
    assert sent.numel() == other.numel() and checksum_of(sent) != checksum_of(other)


def test_json_from_elsewhere() -> None:
    for text in ('{"a": NaN}', "Infinity", "1e999", "[" * 10**5, '"\\ud800"', "9" * 5000, b"\xff", ""):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json(b'{"a": [1.5, "\\ud83d\\ude00"]}') == {"a": [1.5, "\U0001f600"]}


@pytest.mark.parametrize(
    "message",
    [
        training.Ready(0, 5, 3, 2, "x"),
        training.Step(
            1, 1, 3, float("nan"), 7, 0.5, 0.1, training.WireCounters(1, 2), training.Sent(0.5), None
        ),
        training.Evaluated(0, 1, 0.5, 0.5),
        training.Finished(1),
        training.Failed(1, "why", "where"),
    ],
)
def test_messages_of_training(message: training.Message) -> None:
    line = training.encode(message)
    assert training.encode(training.decode(line)) == line
    check_message(
        line.encode(), lambda data: training.decode(data.decode()), ValueError, flips=1000, others=60
    )


def test_terms() -> None:
    check_message(
        TERMS.to_json().encode(),
        lambda data: Terms.from_json(data.decode()).table(),
        ValueError,
        flips=1000,
        others=60,
    )


def words(data: bytes) -> np.ndarray:
    return np.frombuffer(data[: len(data) // 4 * 4], np.uint32)


def a_message(kind: Kind) -> Message:
    """Return a message with something in every place."""
    return Message(
        kind,
        member=1,
        incarnation=7,
        number=3,
        acked=2,
        epoch=1,
        moves_epoch=2,
        pushed=4,
        wanted=5,
        lr=0.1,
        settings="{}",
        lost=((1, 2, 3),),
        moves=np.array([[2, 1]]),
        pushed_units=np.arange(3, dtype=np.uint32),
        wanted_units=np.arange(4, dtype=np.uint32),
        aside=np.arange(5, dtype=np.uint32),
        payload=np.arange(9, dtype=np.uint32),
    )


@pytest.mark.parametrize("kind", Kind)
def test_messages_of_parameter_servers(kind: Kind) -> None:
    content = a_message(kind).encode()
    np.testing.assert_array_equal(Message.decode(content).encode(), content)
    check_message(content.tobytes(), lambda data: Message.decode(words(data)), MessageError, flips=2000)


UNITS = Units.of([ParameterInfo("a", (600, 4), row=4)])


@pytest.mark.parametrize("chosen", [range(600), range(0, 600, 7), (3, 500), range(10, 90)])
def test_lists_of_units(chosen: Sequence[int]) -> None:
    content = UNITS.encode(np.array(chosen))
    check_message(content.tobytes(), lambda data: UNITS.decode(words(data)), PayloadError, flips=2000)


def test_commands_of_parameter_servers() -> None:
    first, rest = commands.pack(commands.Command(commands.Kind.STEP, {"groups": [{"lr": 0.1}] * 40}))

    def decode(data: bytes) -> commands.Command:
        found = words(data.ljust(4 * first.size, b"\0"))
        return commands.unpack(found[: first.size], found[first.size :])

    check_message(first.tobytes() + rest.tobytes(), decode, ValueError, flips=2000)


@pytest.mark.parametrize(
    ("content", "decode"),
    [
        (frames.Hello(3, b"s" * frames.SECRET_BYTES).encode(), frames.Hello.decode),
        (frames.Frame(frames.FrameKind.OFFER, 3, 4, 5, "float32").encode(), frames.Frame.decode),
    ],
)
def test_frames_between_ranks(content: bytes, decode: Callable[[bytes], object]) -> None:
    check_message(content, decode, ValueError)
