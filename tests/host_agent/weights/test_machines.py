# SPDX-License-Identifier: Apache-2.0
"""Publisher and subscribers over a network with faults: every engine gets every version, in any case."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host_agent.weights.world import JOB, KEY, LAYOUT, MS, TRAINER, Faults, S, World
from weir.host_agent.transport.datagram_batches import batch_of
from weir.host_agent.weights.pace import Rates
from weir.host_agent.weights.packets import (
    DIGEST_BYTES,
    DataWriter,
    Name,
    Packet,
    State,
    Verdict,
    bitmap,
    decode,
    indices,
    packets_of,
)
from weir.host_agent.weights.subscriber import Digest, Forgotten, Message, Subscriber
from weir.wire.definition import WEIGHTS_DATA, WeightsType

FAULTS = st.builds(
    Faults,
    loss=st.sampled_from((0.0, 0.01, 0.1, 0.3)),
    repeat=st.sampled_from((0.0, 0.1)),
    delay=st.sampled_from((50_000, 5 * MS, 75 * MS)),
    jitter=st.sampled_from((0, 2 * MS, 30 * MS)),
)


@given(
    st.integers(0, 10_000),
    FAULTS,
    st.integers(1, 5),
    st.lists(st.integers(1, 60_000), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_all_get_all_versions(seed: int, faults: Faults, engines: int, lengths: list[int]) -> None:
    world = World(seed, faults)
    for number in range(engines):
        world.join(f"e{number}")
    assert world.run(lambda: world.all_have(1))
    for length in lengths:
        version = world.publish(length)
        assert world.run(lambda: world.all_have(version))  # noqa: B023
    assert all(engine.versions == list(range(1, version + 1)) for engine in world.engines.values())


@given(st.integers(0, 10_000), FAULTS, st.integers(1, 60_000), st.integers(0, 300 * MS))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_a_digest_may_be_known_later_than_the_code(
    seed: int, faults: Faults, length: int, later: int
) -> None:
    world = World(seed, faults)
    engine = world.join("e")
    assert world.run(lambda: world.all_have(1))
    version = world.publish(length, later)
    if not faults.loss and later > 250 * MS:
        assert world.run(lambda: engine.code == world.codes[Name(version, snapshot=False)], most=later - 1)
        assert engine.versions == [1]
    assert world.run(lambda: world.all_have(version))


def test_a_message_whose_digest_will_not_come_is_forgotten() -> None:
    machine = subscriber()
    machine.on_packet(data(data=b"weights").encode(KEY), 0, TRAINER)
    (message,) = machine.messages()
    assert isinstance(message, Message) and bytes(message.code) == b"weights"
    state = State(9, 1, 8, 9, 2, LAYOUT)  # the update to version 2 is not kept any more
    machine.on_packet(state.packet(JOB).encode(KEY), 1, TRAINER)
    assert machine.messages() == [Forgotten(message.name)]


@pytest.mark.parametrize("size", [1, 57, 58, 59, 200])
def test_packets_that_come_together_are_as_good_as_one_by_one(size: int) -> None:
    written = DataWriter(JOB, KEY)
    code = bytes(range(256)) * 5 * size
    packets = packets_of(len(code)) + 1
    name = Name(2, snapshot=False)
    payloads = written.write(name, packets, 0, np.frombuffer(code, np.uint8), None).split()
    digest = written.write(name, packets, packets - 1, np.zeros(DIGEST_BYTES, np.uint8), None).split()
    damaged = bytearray(payloads[0])
    damaged[-1] ^= 1
    foreign = data(number=1000).encode(KEY)
    machine = Subscriber(JOB, KEY, LAYOUT, TRAINER, len(code))
    machine.version = 1
    machine.on_batch(batch_of([foreign, *payloads, bytes(damaged), *payloads[:3], *digest], TRAINER), 0)
    message, end = machine.messages()
    assert isinstance(message, Message) and bytes(message.code) == code
    assert isinstance(end, Digest) and end.digest == bytes(DIGEST_BYTES)
    assert machine.verdicts == {
        Verdict.ACCEPTED: packets,
        Verdict.DUPLICATE: len(payloads[:3]),
        Verdict.BAD_CHECK: 1,
        Verdict.NOT_WANTED: 1,
    }
    machine.on_batch(batch_of(payloads, ("stranger", 1)), 0)
    assert machine.verdicts[Verdict.WRONG_SENDER] == len(payloads)


@given(st.integers(0, 10_000), FAULTS)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_engines_come_and_go_while_versions_follow_one_another(seed: int, faults: Faults) -> None:
    world = World(seed, faults, journal_bytes=100_000)
    version = 1
    for step in range(12):
        if world.random.random() < 0.5:
            world.join(f"e{step}")
        if len(world.engines) > 1 and world.random.random() < 0.3:
            world.leave(world.random.choice(list(world.engines)))
        world.down = world.random.random() < 0.2
        version = world.publish(world.random.randrange(1, 60_000))
        world.run(most=world.random.randrange(2 * S))
    world.down = False
    world.join("last")
    assert world.run(lambda: world.all_have(version))


def test_the_trainer_sends_as_much_to_many_as_to_one() -> None:
    def sent(engines: int) -> int:
        world = World(1, Faults(), size=1000)
        for number in range(engines):
            world.join(f"e{number}")
        assert world.run(lambda: world.all_have(1))
        before = world.sent[TRAINER]
        for _ in range(2):
            version = world.publish(200_000)
            assert world.run(lambda: world.all_have(version))  # noqa: B023
        return world.sent[TRAINER] - before

    one = sent(1)
    assert one < 1.04 * 2 * 200_000
    for engines in (2, 8, 16, 64):
        assert abs(sent(engines) / one - 1) < 0.03


def test_the_rate_falls_once_for_what_is_lost_together() -> None:
    world = World(1, Faults(), size=1000, rates=Rates(first=5e6, most=5e6))
    world.join("e")
    world.run(lambda: world.all_have(1))
    world.publish(WEIGHTS_DATA * 900)
    world.run(most=50 * MS)
    world.down = True
    world.run(most=50 * MS)  # 220 packets
    world.down = False
    assert world.run(lambda: world.all_have(2))
    assert 150 < world.publisher.counts["lost"] < 300
    assert world.publisher.pace.rate > 2e6


def test_what_several_lack_is_repaired_once_for_all() -> None:
    world = World(1, Faults(), size=1000)
    for number in range(8):
        world.join(f"e{number}")
    world.run(lambda: world.all_have(1))
    world.down = True
    world.publish(WEIGHTS_DATA * 20)
    world.run(most=10 * MS)
    world.down = False
    assert world.run(lambda: world.all_have(2))
    assert world.publisher.counts["repairs to all"] >= 20
    assert world.sent[TRAINER] < 4 * 20 * WEIGHTS_DATA


def test_a_late_engine_gets_a_snapshot_and_the_updates_behind_it() -> None:
    world = World(1, Faults(), size=400_000)
    world.join("early")
    world.run(lambda: world.all_have(1))
    for _ in range(3):
        world.publish(10_000)
        world.run(most=2 * S)
    late = world.join("late")
    world.run(most=30 * MS)
    version = world.publish(10_000)  # while it fetches
    assert world.run(lambda: world.all_have(version))
    assert late.versions == [4, 5]
    assert world.publisher.counts["snapshots"] == 2


def test_who_fell_behind_the_journal_gets_a_snapshot() -> None:
    world = World(1, Faults(), journal_bytes=50_000)
    engine = world.join("e")
    world.run(lambda: world.all_have(1))
    world.down = True
    for _ in range(20):
        version = world.publish(10_000)
        world.run(most=50 * MS)
    world.down = False
    assert world.run(lambda: world.all_have(version))
    assert len(engine.versions) < 5
    assert engine.machine.counts["snapshots"] == 2


def test_the_journal_is_bounded() -> None:
    world = World(1, Faults(), journal_bytes=50_000)
    for _ in range(50):
        world.publish(10_000)
        world.run(most=50 * MS)
    assert world.publisher.newest - world.publisher.oldest < 6


def data(number: int = 2, **changes: object) -> Packet:
    fields = {"number": number, "index": 0, "count": 2, "data": b"weights", **changes}
    return Packet(WeightsType.DATA, JOB, **fields)  # type: ignore[arg-type]


def subscriber(version: int = 1) -> Subscriber:
    made = Subscriber(JOB, KEY, LAYOUT, TRAINER, 10_000)
    made.version = version
    return made


def test_a_key_has_the_length_that_the_check_reads() -> None:
    with pytest.raises(ValueError, match="a job's key has 16 bytes, not 15"):
        data().encode(KEY[:-1])
    with pytest.raises(ValueError, match="not 17"):
        decode(data().encode(KEY), JOB, KEY + b"!")


@pytest.mark.parametrize(
    ("payload", "source", "verdict"),
    [
        (data().encode(KEY), ("stranger", 1), Verdict.WRONG_SENDER),
        (data().encode(b"another jobs key"), TRAINER, Verdict.BAD_CHECK),
        (data().encode(KEY)[:-1], TRAINER, Verdict.MALFORMED),
        (data().encode(KEY) + b"!", TRAINER, Verdict.MALFORMED),
        (b"", TRAINER, Verdict.MALFORMED),
        (Packet(WeightsType.DATA, JOB + 1, 2, 0, 1, data=b"w").encode(KEY), TRAINER, Verdict.WRONG_JOB),
        (Packet(WeightsType.ASK, JOB, 2, 0, 1, data=b"w").encode(KEY), TRAINER, Verdict.MALFORMED),
        (data(index=2).encode(KEY), TRAINER, Verdict.MALFORMED),
        (data(index=1).encode(KEY), TRAINER, Verdict.MALFORMED),
        (data(count=1).encode(KEY), TRAINER, Verdict.MALFORMED),
        (data(count=3).encode(KEY), TRAINER, Verdict.MALFORMED),
        (data(data=b"").encode(KEY), TRAINER, Verdict.MALFORMED),
        (data(count=1 << 31, data=bytes(WEIGHTS_DATA)).encode(KEY), TRAINER, Verdict.TOO_LONG),
        (data(number=1).encode(KEY), TRAINER, Verdict.DUPLICATE),
        (data(number=1000).encode(KEY), TRAINER, Verdict.NOT_WANTED),
        (data(snapshot=True).encode(KEY), TRAINER, Verdict.NOT_WANTED),
        (
            State(2, 1, 2, 0, 0, b"notthose").packet(JOB).encode(KEY),
            TRAINER,
            Verdict.WRONG_LAYOUT,
        ),
    ],
)
def test_packets_that_a_subscriber_refuses(payload: bytes, source: tuple[str, int], verdict: Verdict) -> None:
    machine = subscriber()
    assert machine.on_packet(payload, 0, source) is verdict
    assert machine.verdicts == {verdict: 1}
    assert machine.messages() == []


def test_every_flipped_bit_is_found() -> None:
    payload = data().encode(KEY)
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode(bytes(damaged), JOB, KEY), Verdict)


def siphash(key: bytes, message: bytes) -> int:
    """SipHash-2-4, written from the paper."""
    low, high = struct.unpack("<QQ", key)
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]

    def turn(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & (1 << 64) - 1

    def rounds(count: int) -> None:
        for _ in range(count):
            for first, second, bits in ((0, 1, 13), (2, 3, 16)):
                v[first] = (v[first] + v[second]) & (1 << 64) - 1
                v[second] = turn(v[second], bits) ^ v[first]
            v[0] = turn(v[0], 32)
            for first, second, bits in ((2, 1, 17), (0, 3, 21)):
                v[first] = (v[first] + v[second]) & (1 << 64) - 1
                v[second] = turn(v[second], bits) ^ v[first]
            v[2] = turn(v[2], 32)

    whole = message + bytes(-(len(message) + 1) % 8) + bytes((len(message) % 256,))
    for (word,) in struct.iter_unpack("<Q", whole):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@given(st.binary(min_size=1, max_size=WEIGHTS_DATA))
def test_the_check_is_that_of_the_definition(content: bytes) -> None:
    assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5  # of the paper
    payload = data(data=content).encode(KEY)
    expected = siphash(KEY, payload[:20] + bytes(4) + content)
    assert int.from_bytes(payload[20:28], "big") == expected


def test_a_publisher_takes_questions_alone() -> None:
    world = World(1, Faults())
    for packet in (data(), State(9, 1, 9, 0, 0, LAYOUT).packet(JOB)):
        assert world.publisher.on_packet(packet.encode(KEY), 0, "e") is Verdict.MALFORMED
    assert world.publisher.newest == 1


def test_questions_of_one_subscriber_make_no_more_than_one_copy() -> None:
    world = World(1, Faults())
    world.publish(WEIGHTS_DATA * 10)
    world.run(most=100 * MS)
    before = world.publisher.counts["sent"]
    ask = Packet(WeightsType.ASK, JOB, 2, 0, 1, data=bitmap(0, list(range(10)))).encode(KEY)
    for _ in range(1000):
        world.publisher.on_packet(ask, world.now, "e")
    world.pump()
    world.run(most=15 * MS)
    assert world.publisher.counts["repairs to one"] == 10
    assert world.publisher.counts["sent"] == before


@given(st.integers(0, 100_000), st.sets(st.integers(0, 4095), min_size=1))
def test_a_bitmap_names_what_it_was_made_of(base: int, some: set[int]) -> None:
    wanted = sorted(base + index for index in some)
    assert indices(wanted[0], bitmap(wanted[0], wanted)) == wanted


def test_a_message_has_a_name() -> None:
    assert data(snapshot=True).name == Name(2, snapshot=True)


def test_a_loss_is_asked_for_while_the_stream_goes_on() -> None:
    machine, whole, asked = (
        Subscriber(JOB, KEY, LAYOUT, TRAINER, 1000 * WEIGHTS_DATA),
        bytes(WEIGHTS_DATA),
        [],
    )
    machine.version = 1
    for index in range(100):
        if index not in (10, 60):
            packet = data(index=index, count=200, data=whole)
            machine.on_packet(packet.encode(KEY), index * MS, TRAINER)
        for payload in machine.poll(index * MS)[0]:
            question = decode(payload, JOB, KEY)
            assert isinstance(question, Packet)
            asked.append((index, indices(question.index, question.data)))
    first, again = asked
    assert first == (14, [10])
    assert 70 < again[0] < 90 and again[1] == [10, 60]


def test_messages_under_way_are_bounded() -> None:
    machine = subscriber()
    whole = bytes(WEIGHTS_DATA)
    for number in range(2, 12):
        machine.on_packet(data(number=number, count=9, data=whole).encode(KEY), 0, TRAINER)
    assert machine.verdicts == {Verdict.ACCEPTED: 2, Verdict.NOT_WANTED: 8}
