# SPDX-License-Identifier: Apache-2.0
"""Action profiles over P4Runtime, beside BMv2: which updates are taken, which member a packet gets."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format

from softp4.errors import ControlError
from softp4.p4rt import batch, entities
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4rt.pipeline import Pipeline, carry_over
from softp4.p4runtime.schema import p4info_pb2
from softp4.p4runtime.schema import p4runtime_pb2 as p4rt
from softp4.switch import Switch
from tests.harness.bmv2_stream import Bmv2Stream
from tests.programs import FOLDER, pack, program

PROGRAM, INFO = FOLDER / "profiles.json", FOLDER / "profiles.p4info.txtpb"
IDS = {
    each.preamble.alias: each
    for kind in ("tables", "actions", "action_profiles")
    for each in getattr(text_format.Parse(INFO.read_text(), p4info_pb2.P4Info()), kind)
}
KINDS = {"INSERT": p4rt.Update.INSERT, "MODIFY": p4rt.Update.MODIFY, "DELETE": p4rt.Update.DELETE}
SPREAD, CHOSEN = 3, 4


def make_pipeline() -> Pipeline:
    info = text_format.Parse(INFO.read_text(), p4info_pb2.P4Info())
    config = p4rt.ForwardingPipelineConfig(p4info=info, p4_device_config=PROGRAM.read_bytes())
    return Pipeline(config, P4InfoIndex(info), Switch(program("profiles")))


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    made = make_pipeline()
    yield made
    made.switch.close()


def number_of(name: str) -> int:
    number: int = IDS[name].preamble.id
    return number


def action(value: int) -> Any:
    message = p4rt.Action(action_id=number_of("number"))
    message.params.add(param_id=1, value=bytes([value]))
    return message


def update(kind: str, **entity: Any) -> Any:
    return p4rt.Update(type=KINDS[kind], entity=p4rt.Entity(**entity))


def member(kind: str, profile: str, number: int, value: int) -> Any:
    message = p4rt.ActionProfileMember(action_profile_id=number_of(profile), member_id=number)
    message.action.CopyFrom(action(value))
    return update(kind, action_profile_member=message)


def group(kind: str, profile: str, number: int, weights: dict[int, int], **fields: Any) -> Any:
    message = p4rt.ActionProfileGroup(action_profile_id=number_of(profile), group_id=number, **fields)
    for each, weight in weights.items():
        message.members.add(member_id=each, weight=weight)
    return update(kind, action_profile_group=message)


def entry(kind: str, table: str, key: int, **reference: Any) -> Any:
    message = p4rt.TableEntry(table_id=number_of(table))
    field = message.match.add(field_id=1)
    if table == "spread":
        field.lpm.value, field.lpm.prefix_len = key.to_bytes(1, "big") + bytes(3), 8
    else:
        field.exact.value = bytes([key])
    if reference:
        message.action.CopyFrom(p4rt.TableAction(**reference))
    return update(kind, table_entry=message)


def one_shot(values: list[tuple[int, int]]) -> Any:
    message = p4rt.ActionProfileActionSet()
    for value, weight in values:
        message.action_profile_actions.add(action=action(value), weight=weight)
    return message


def write(pipeline: Pipeline, message: Any) -> None:
    entities.write(pipeline, message.type, message.entity)


def read(pipeline: Pipeline, **entity: Any) -> list[Any]:
    return list(entities.read(pipeline, p4rt.Entity(**entity)))


def taken(pipeline: Pipeline, message: Any) -> bool:
    try:
        write(pipeline, message)
    except ControlError:
        return False
    return True


def filled(pipeline: Pipeline) -> list[Any]:
    """Write a bit of everything; returns the entities, all of which must read back alike."""
    updates = [
        *(member("INSERT", "by_value", number, number) for number in (1, 2)),
        group("INSERT", "by_value", 1, {2: 3, 1: 1}, max_size=9),
        group("INSERT", "by_value", 2, {}),
        entry("INSERT", "chosen", 1, action_profile_group_id=1),
        entry("INSERT", "chosen", 2, action_profile_member_id=2),
        entry("INSERT", "spread", 10, action_profile_action_set=one_shot([(7, 1), (8, 2), (7, 1)])),
    ]
    updates[2].entity.action_profile_group.members[0].watch_port = b"\x07"
    updates[2].entity.action_profile_group.members[1].watch = 8
    actions = updates[-1].entity.table_entry.action.action_profile_action_set.action_profile_actions
    actions[1].watch_port = b"\x01\x00"
    for each in updates:
        write(pipeline, each)
    return [each.entity for each in updates]


def everything(pipeline: Pipeline) -> list[Any]:
    return [
        *read(pipeline, action_profile_member=p4rt.ActionProfileMember()),
        *read(pipeline, action_profile_group=p4rt.ActionProfileGroup()),
        *read(pipeline, table_entry=p4rt.TableEntry()),
    ]


def in_any_order(found: list[Any]) -> list[str]:
    return sorted(map(str, found))


def test_what_is_written_reads_back(pipeline: Pipeline) -> None:
    written = filled(pipeline)
    assert in_any_order(everything(pipeline)) == in_any_order(written)
    one = p4rt.ActionProfileGroup(action_profile_id=number_of("by_value"), group_id=1)
    assert read(pipeline, action_profile_group=one) == [written[2]]
    one.group_id = 7
    assert read(pipeline, action_profile_group=one) == []
    by_member = p4rt.TableEntry(table_id=number_of("chosen"))
    by_member.action.action_profile_member_id = 2
    assert read(pipeline, table_entry=by_member) == [written[5]]


def test_everything_moves_to_another_program(pipeline: Pipeline) -> None:
    written = filled(pipeline)
    new = make_pipeline()
    carry_over(pipeline, new)
    assert in_any_order(everything(new)) == in_any_order(written)
    new.switch.close()


def test_a_batch_is_rolled_back(pipeline: Pipeline) -> None:
    filled(pipeline)
    before = in_any_order(everything(pipeline))
    request = p4rt.WriteRequest(atomicity=p4rt.WriteRequest.ROLLBACK_ON_ERROR)
    request.updates.extend(
        [
            member("INSERT", "by_value", 3, 3),
            member("MODIFY", "by_value", 1, 9),
            group("MODIFY", "by_value", 1, {3: 1}),
            entry("MODIFY", "chosen", 2, action_profile_group_id=1),
            entry("DELETE", "spread", 10),
            group("DELETE", "by_value", 2, {}),
            member("DELETE", "by_value", 99, 1),
        ]
    )
    results = batch.apply(pipeline, request)
    assert all(results)
    assert in_any_order(everything(pipeline)) == before


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (member("INSERT", "by_value", 0, 1), "INVALID_ARGUMENT"),
        (group("INSERT", "by_value", 0, {}), "INVALID_ARGUMENT"),
        (group("INSERT", "by_value", 9, {}, max_size=-1), "INVALID_ARGUMENT"),
        (group("INSERT", "by_value", 9, {1: 65}), "RESOURCE_EXHAUSTED"),
        (group("INSERT", "shared", 1, {}), "INVALID_ARGUMENT"),
        (member("INSERT", "by_crc16", 1, 1), "INVALID_ARGUMENT"),  # it has one-shot groups
        (entry("INSERT", "chosen", 9, action=action(1)), "INVALID_ARGUMENT"),
        (entry("INSERT", "chosen", 9, action_profile_member_id=9), "INVALID_ARGUMENT"),
        (entry("INSERT", "chosen", 9, action_profile_group_id=2), "FAILED_PRECONDITION"),
        (entry("INSERT", "chosen", 9, action_profile_action_set=one_shot([(1, 1)])), "INVALID_ARGUMENT"),
        (entry("INSERT", "spread", 9, action_profile_action_set=one_shot([(1, -1)])), "INVALID_ARGUMENT"),
    ],
)
def test_what_is_refused(pipeline: Pipeline, message: Any, code: str) -> None:
    filled(pipeline)
    before = in_any_order(everything(pipeline))
    with pytest.raises(ControlError) as caught:
        write(pipeline, message)
    assert caught.value.code.name == code, caught.value
    assert in_any_order(everything(pipeline)) == before


# -- beside BMv2 -------------------------------------------------------------------------------------------


@pytest.fixture
def bmv2() -> Iterator[Bmv2Stream]:
    with Bmv2Stream(PROGRAM, INFO) as stream:
        yield stream


def frames(seed: int) -> list[tuple[int, bytes]]:
    rng = random.Random(seed)
    widths = (8, 32, 16, 4, 4, 64, 16)
    found = []
    for _ in range(64):
        ip = rng.choice((rng.randrange(8), rng.randrange(8) << 24))
        high = rng.choice((0, 1))  # 1: another header follows, which is hashed too
        fields = (rng.choice((SPREAD, CHOSEN)), ip, rng.getrandbits(16), rng.getrandbits(4), high)
        found.append((1, pack(list(zip((*fields, rng.getrandbits(64), 99), widths, strict=True)))))
    return found


def random_update(rng: random.Random, members: list[int]) -> Any:
    """Return members and groups for `chosen`, one-shot groups for `spread`.

    A group is never made empty and has only members that are there: BMv2 makes a group before it finds out.
    """
    kind = rng.choice(("INSERT", "INSERT", "MODIFY", "DELETE"))
    what = rng.randrange(5) if members else 0
    number = rng.randrange(1, 7)
    if what == 0:
        return member(kind, "by_value", number, rng.randrange(256))
    if what < 3:
        weights = {each: rng.randrange(1, 4) for each in rng.sample(members, rng.randint(1, len(members)))}
        return group(kind, "by_value", rng.randrange(1, 4), weights)
    if what == 3:
        references = ({"action_profile_group_id": rng.randrange(1, 4)}, {"action_profile_member_id": number})
        return entry(kind, "chosen", rng.randrange(8), **rng.choice(references))
    actions = [(rng.randrange(256), rng.randrange(1, 4)) for _ in range(rng.randrange(1, 4))]
    return entry(kind, "spread", rng.randrange(1, 8), action_profile_action_set=one_shot(actions))


@pytest.mark.bmv2
@pytest.mark.parametrize("seed", range(3))
def test_every_packet_gets_the_member_that_bmv2_chooses(
    pipeline: Pipeline, bmv2: Bmv2Stream, seed: int
) -> None:
    rng = random.Random(seed)
    changed = 0
    for step in range(250):
        members = [each.id for each in pipeline.switch.profile("In.by_value").members()]
        message = random_update(rng, members)
        here = taken(pipeline, message)
        try:
            bmv2.control.write(message)
            there = True
        except RuntimeError:
            there = False
        assert here == there, (step, message)
        changed += here
        if step % 5 == 4:
            traffic = frames(rng.getrandbits(32))
            expected = bmv2.process(traffic)
            assert [pipeline.switch.process(*frame, now=0) for frame in traffic] == expected, step
    assert changed > 50
