# SPDX-License-Identifier: Apache-2.0
"""Updates that are decoded natively do what they do in Python, to the last byte; all others are left to it"""

import contextlib
import functools
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from softp4.errors import ControlError
from softp4.p4rt import batch, entities
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.pipeline import EntryNotes, Pipeline
from softp4.p4rt.updates import UpdateDecoder
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.switch import Switch
from tests.fuzzing.sanitized import run_sanitized, runtime
from tests.harness.effort import examples
from tests.programs import FOLDER, pack, program

CASES = examples(30)
_FIELD = p4info_pb2.MatchField
_QUERY = (8, 48, 32, 128, 16, 4, 4)  # what the program `matching` reads: a table's number, then key fields
_INSERT, _MODIFY, _DELETE = p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE


def information(name: str) -> Any:
    """Return the P4Info of a program."""
    return text_format.Parse((FOLDER / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


INFO = information("matching")
ACTIONS = {action.preamble.id: action for action in INFO.actions}


@contextlib.contextmanager
def running(name: str = "matching") -> Iterator[Pipeline]:
    """Yield a pipeline of a program."""
    config = p4rt.ForwardingPipelineConfig(p4info=information(name))
    with Switch(program(name)) as switch:
        yield Pipeline(config, P4InfoIndex(config.p4info), switch)


@functools.cache
def decoder() -> UpdateDecoder:
    """Return a decoder, which needs no running switch."""
    with running() as pipeline:
        return pipeline.updates


# -- requests ---------------------------------------------------------------------------------------------


def shortest(value: int) -> bytes:
    """Return the canonical byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Requests:
    """Makes WriteRequests, most of them good."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._before: list[Any] = []

    def make(self) -> bytes:
        """Return a request, serialized, perhaps with some bytes changed."""
        rng = self._rng
        request = p4rt.WriteRequest(device_id=rng.randrange(300), role="r" * rng.randrange(2))
        request.atomicity = rng.choice([0] * 9 + [1])
        for _ in range(rng.randint(1, 8)):
            again = self._before and rng.random() < 0.5
            entry = rng.choice(self._before) if again else self._entry()
            self._before.append(entry)
            update = request.updates.add(type=rng.choice([_INSERT, _INSERT, _MODIFY, _DELETE]))
            update.entity.table_entry.CopyFrom(entry)
            if self._rarely():
                self._make_odd(update)
        data: bytes = request.SerializeToString()
        return data if rng.random() < 0.7 else self._spoilt(data)

    def _rarely(self) -> bool:
        return self._rng.random() < 0.02

    def _number(self, bits: int) -> int:
        return self._rng.choice([0, 1, 2, self._rng.getrandbits(bits)]) % (1 << bits)

    def _string(self, value: int, bits: int) -> bytes:
        """Return a value of a field; rarely, one that it cannot have, or in a form that it does not have."""
        if self._rarely():
            return self._rng.choice([b"", b"\0" + shortest(value), shortest(value + (1 << bits))])
        return shortest(value)

    def _entry(self) -> Any:
        rng = self._rng
        table = rng.choice([table for table in INFO.tables if not table.is_const_table])
        entry = p4rt.TableEntry(table_id=table.preamble.id)
        for field in table.match_fields:
            if field.match_type == _FIELD.EXACT or rng.random() < 0.7:
                self._add_match(field, entry)
        if any(field.match_type not in (_FIELD.EXACT, _FIELD.LPM) for field in table.match_fields):
            entry.priority = rng.choice([1, 2, 300, (1 << 31) - 1])
        refs = [ref for ref in table.action_refs if ref.scope != ref.DEFAULT_ONLY or self._rarely()]
        action = ACTIONS[rng.choice(refs).id]
        entry.action.action.action_id = action.preamble.id
        for param in action.params:
            value = self._string(self._number(param.bitwidth), param.bitwidth)
            entry.action.action.params.add(param_id=param.id, value=value)
        return entry

    def _add_match(self, field: Any, entry: Any) -> None:
        match, bits = entry.match.add(field_id=field.id), field.bitwidth
        one, other = self._number(bits), self._number(bits)
        if field.match_type == _FIELD.LPM:
            match.lpm.prefix_len = self._rng.randint(1, bits)
            beyond = bits - match.lpm.prefix_len
            match.lpm.value = self._string(one if self._rarely() else one >> beyond << beyond, bits)
        elif field.match_type == _FIELD.TERNARY:
            mask = other or 1
            match.ternary.value = self._string(one if self._rarely() else one & mask, bits)
            match.ternary.mask = self._string(0 if self._rarely() else mask, bits)
        elif field.match_type == _FIELD.RANGE:
            low, high = (one, other) if self._rarely() else sorted([one, other])
            match.range.low, match.range.high = self._string(low, bits), self._string(high, bits)
        else:
            part = match.optional if field.match_type == _FIELD.OPTIONAL else match.exact
            part.value = self._string(one, bits)

    def _make_odd(self, update: Any) -> None:
        entry = update.entity.table_entry
        match self._rng.randrange(11):
            case 0:
                entry.metadata = b"mine"
            case 1:
                entry.ClearField("action")
            case 2:
                entry.is_default_action = True
            case 3:
                entry.priority = self._rng.choice([-1, 0, 5])
            case 4:
                entry.idle_timeout_ns = 5
            case 5:
                del entry.match[:1]
            case 6:
                entry.action.action_profile_member_id = 1
            case 7:
                update.type = self._rng.choice([0, 4])
            case 8:
                entry.counter_data.packet_count = 5
            case 9:
                entry.match.reverse()
            case _:
                group = update.entity.packet_replication_engine_entry.multicast_group_entry
                group.multicast_group_id = 1

    def _spoilt(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self._rng.randint(1, 3)):
            place = self._rng.randrange(len(changed) + 1)
            match self._rng.randrange(5):
                case 0:
                    changed[place : place + 1] = self._rng.randbytes(self._rng.randrange(3))
                case 1:
                    changed[place:place] = self._rng.randbytes(self._rng.randrange(8))
                case 2:
                    del changed[place : place + self._rng.randint(1, 8)]
                case 3 if place < len(changed):
                    changed[place] ^= 1 << self._rng.randrange(8)
                case _:
                    del changed[place:]
        return bytes(changed)


# -- both ways --------------------------------------------------------------------------------------------


def parsed(data: bytes) -> Any:
    """Return a WriteRequest, None for bytes that are none."""
    try:
        return p4rt.WriteRequest.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return None


def write(pipeline: Pipeline, data: bytes) -> tuple[list[tuple[int, str]], bool]:
    """Apply a request as the service does; return each update's code and message, and whether it was decoded
    natively.
    """
    updates = pipeline.updates.decode(data)
    request = parsed(data if updates is None else updates.head)
    ordinary = updates is not None and request.atomicity == request.CONTINUE_ON_ERROR
    if ordinary:
        return _said(batch.apply_ordinary(pipeline, updates)), True
    return _applied(pipeline, parsed(data)), False


def _applied(pipeline: Pipeline, request: Any) -> list[tuple[int, str]]:
    """Apply a request in Python; return the code and message of each update, or of the whole if refused."""
    try:
        return _said(batch.apply(pipeline, request))
    except ControlError as error:
        return [(int(error.code), error.message)]


def _said(results: batch.Results) -> list[tuple[int, str]]:
    return [(0, "") if each is None else (int(each.code), each.message) for each in results]


def readable(pipeline: Pipeline) -> list[bytes]:
    """Return all entries, in the order and with the bytes in which a controller reads them."""
    return list(entities.read_responses(pipeline, p4rt.Entity(table_entry=p4rt.TableEntry())))


def _entries_of(pipeline: Pipeline) -> list[Any]:
    return [pipeline.switch.table(table.name).entries() for table in pipeline.info.tables.values()]


def answers(pipeline: Pipeline, seed: int) -> list[Any]:
    """Return what the native tables make of some frames."""
    rng = random.Random(seed)
    few = [0, 1, 2]
    found = []
    for table in range(1, 9):
        for _ in range(4):
            values = [table, *(rng.choice([*few, rng.getrandbits(bits)]) for bits in _QUERY[1:])]
            query = pack(
                list(zip([v % (1 << b) for v, b in zip(values, _QUERY, strict=True)], _QUERY, strict=True))
            )
            found.append(pipeline.switch.process(5, query, 0))
    return found


@settings(max_examples=CASES, deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_the_same_as_in_python(seed: int) -> None:
    requests = Requests(seed)
    with running() as one, running() as other:
        for number in range(8):
            data = requests.make()
            request = parsed(data)
            if request is None:
                assert one.updates.decode(data) is None
                continue
            assert write(one, data)[0] == _applied(other, request)
            assert readable(one) == readable(other)
            assert _entries_of(one) == _entries_of(other)
            assert answers(one, number) == answers(other, number)


@settings(max_examples=10 * CASES, deadline=None)
@given(st.binary(max_size=200) | st.integers(0, (1 << 64) - 1).map(lambda seed: Requests(seed).make()))
def test_nothing_is_made_of_bytes_that_protobuf_would_write_otherwise(data: bytes) -> None:
    updates, request = decoder().decode(data), parsed(data)
    if updates is None:
        return
    assert request is not None
    rest = parsed(updates.head)
    assert not rest.updates
    assert len(updates.head) + len(p4rt.WriteRequest(updates=request.updates).SerializeToString()) == len(
        data
    )
    rest.updates.extend(request.updates)
    assert rest == request


@pytest.mark.skipif(runtime() is None, reason="the compiler has no AddressSanitizer")
def test_the_same_under_sanitizers() -> None:
    report = run_sanitized([sys.executable, "-m", __name__])
    assert not report.bad, report.output


# -- what is ordinary -------------------------------------------------------------------------------------


def _request(*updates: tuple[int, Any]) -> bytes:
    request = p4rt.WriteRequest(device_id=1, election_id={"low": 1}, role="r")
    for kind, entry in updates:
        request.updates.add(type=kind).entity.table_entry.CopyFrom(entry)
    data: bytes = request.SerializeToString()
    return data


def _entry(table: str, number: int = 1) -> Any:
    """Return an entry that says all it can."""
    [about] = [each for each in INFO.tables if each.preamble.alias == table]
    entry = p4rt.TableEntry(table_id=about.preamble.id)
    for field in about.match_fields:
        value = bytes([number if field.bitwidth > 1 else 1])
        match = entry.match.add(field_id=field.id)
        if field.match_type == _FIELD.LPM:
            match.lpm.value, match.lpm.prefix_len = value, field.bitwidth
        elif field.match_type == _FIELD.TERNARY:
            match.ternary.value = match.ternary.mask = value
        elif field.match_type == _FIELD.RANGE:
            match.range.low, match.range.high = b"\0", value
        else:
            getattr(match, "exact" if field.match_type == _FIELD.EXACT else "optional").value = value
    if any(field.match_type not in (_FIELD.EXACT, _FIELD.LPM) for field in about.match_fields):
        entry.priority = 7
    called = ACTIONS[about.action_refs[0].id]
    entry.action.action.action_id = called.preamble.id
    for param in called.params:
        entry.action.action.params.add(param_id=param.id, value=bytes([number]))
    return entry


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with running() as made:
        yield made


@pytest.mark.parametrize("table", ["exact_", "routes", "routes6", "acl", "masks", "left", "right"])
def test_ordinary_updates_are_decoded_natively(pipeline: Pipeline, table: str) -> None:
    entries = [_entry(table, number) for number in (1, 2, 3)]
    for kind in (_INSERT, _MODIFY, _DELETE):
        data = _request(*((kind, entry) for entry in entries))
        assert write(pipeline, data) == ([(0, "")] * 3, True)
        read = [p4rt.ReadResponse.FromString(each).entities[0].table_entry for each in readable(pipeline)]
        mine = [entry for entry in read if entry.table_id == entries[0].table_id]
        assert mine == ([] if kind == _DELETE else entries)


def test_runs_of_several_tables_and_types_keep_their_order(pipeline: Pipeline) -> None:
    left, right = _entry("left"), _entry("right")
    updates = (
        (_INSERT, left),
        (_DELETE, left),
        (_INSERT, right),
        (_INSERT, left),
        (_MODIFY, right),
        (_DELETE, left),
    )
    assert write(pipeline, _request(*updates)) == ([(0, "")] * 6, True)
    assert readable(pipeline)[-1:] == [_as_read(right)]


def _as_read(entry: Any) -> bytes:
    data: bytes = p4rt.ReadResponse(entities=[p4rt.Entity(table_entry=entry)]).SerializeToString()
    return data


def test_of_a_run_that_cannot_all_be_made_the_rest_is(pipeline: Pipeline) -> None:
    first, second, third = (_entry("left", number) for number in (1, 2, 3))
    exists, missing = 6, 5
    codes = []
    for updates in (
        [(_INSERT, first), (_INSERT, second), (_INSERT, first)],
        [(_INSERT, third), (_INSERT, second)],
        [(_DELETE, third), (_DELETE, second), (_DELETE, second)],
        [(_MODIFY, first), (_MODIFY, second)],
    ):
        said, ordinary = write(pipeline, _request(*updates))
        assert ordinary
        codes.append([code for code, _ in said])
    assert codes == [[0, 0, exists], [0, exists], [0, 0, missing], [0, missing]]


def test_a_full_table_takes_what_fits(pipeline: Pipeline) -> None:
    size = program("matching").tables["In.left"].size
    said, ordinary = write(pipeline, _request(*((_INSERT, _wide(number)) for number in range(size + 1))))
    assert ordinary and [code for code, _ in said] == [0] * size + [8]


def _wide(number: int) -> Any:
    entry = _entry("left")
    entry.match[0].exact.value = number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
    return entry


def test_notes_of_an_entry_end_with_it(pipeline: Pipeline) -> None:
    noted = _entry("left")
    noted.metadata = b"mine"
    assert write(pipeline, _request((_INSERT, noted))) == ([(0, "")], False)
    assert list(pipeline.notes.values()) == [EntryNotes(0, b"mine")]
    assert write(pipeline, _request((_MODIFY, _entry("left")))) == ([(0, "")], True)
    assert not pipeline.notes


def test_a_longer_byte_string_than_need_be_reads_back_short(pipeline: Pipeline) -> None:
    padded = _entry("left")
    padded.match[0].exact.value = b"\0" + padded.match[0].exact.value
    padded.action.action.params[0].value = b"\0" + padded.action.action.params[0].value
    assert write(pipeline, _request((_INSERT, padded))) == ([(0, "")], True)
    assert _as_read(_entry("left")) in readable(pipeline)


@pytest.mark.parametrize(
    "type_and_more",
    [b"\x08\x81\x00", b"\x08\x01\x08\x01", b"\x08\x01\x18\x01", b"\x08\x80", b"\x08\x00", b""],
    ids=["longer than need be", "given twice", "unknown field", "cut off", "explicit default", "left out"],
)
def test_what_protobuf_would_not_write_is_left_to_python(pipeline: Pipeline, type_and_more: bytes) -> None:
    def request(before: bytes) -> bytes:
        entity = p4rt.Update(entity={"table_entry": _entry("routes")}).SerializeToString()
        update = before + entity
        assert len(update) < 0x80
        return bytes((0x22, len(update))) + update

    assert pipeline.updates.decode(request(b"\x08\x01")) is not None
    assert pipeline.updates.decode(request(type_and_more)) is None


@pytest.mark.parametrize("name", ["control", "meters", "profiles", "types", "value_sets"])
def test_tables_whose_entries_are_more_than_key_and_action_are_left_to_python(name: str) -> None:
    with running(name) as pipeline:
        for table in pipeline.info.tables.values():
            known = pipeline.switch.program.tables[table.name]
            if known.meter or known.ages or known.profile or table.constant:
                request = p4rt.WriteRequest()
                request.updates.add(type=_DELETE).entity.table_entry.table_id = table.id
                assert pipeline.updates.decode(request.SerializeToString()) is None


if __name__ == "__main__":  # under sanitizers
    test_the_same_as_in_python()
    test_nothing_is_made_of_bytes_that_protobuf_would_write_otherwise()
