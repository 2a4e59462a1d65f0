# SPDX-License-Identifier: Apache-2.0
"""The promise of a flow: it ends, both ends agree, no account overdraws its budget, and nothing vanishes."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.host_agent.flows.world import FLOW_ID, Floats, Meddling, World, check, is_chunk, is_protected, mark
from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender, FlowVerdict
from weir.host_agent.flows.accounts import EXPOSED
from weir.host_agent.flows.codec import Bitmap, Chunk, Head, Stop, decode
from weir.host_agent.transport.frames import RELIABLE_CLASS
from weir.host_agent.transport.report import FRAME_OVERHEAD
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.link import Faults
from weir.wire.definition import CE, ECT, LAYER_CLASSES, MAGNITUDE_CLASSES, RELIABLE_DSCP, FlowType, dscp

MS = 1_000_000
EXAMPLES = examples(150)

probabilities = st.sampled_from([0.0, 0.01, 0.1, 0.3])
faults = st.builds(
    Faults,
    delay=st.sampled_from([1_000, 100_000, 10 * MS]),
    jitter=st.sampled_from([0, 100_000, 20 * MS]),
    loss=probabilities,
    duplicate=probabilities,
    late=st.sampled_from([0.0, 0.05]),
    lateness=st.sampled_from([100 * MS, 5_000 * MS]),
)
meddlings = st.builds(
    Meddling,
    trim=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    trim_any=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    mark=st.sampled_from([0.0, 0.1, 1.0]),
    garbage=st.sampled_from([0.0, 0.2]),
)
worlds = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "there": faults,
        "back": faults,
        "meddling": meddlings,
        "meddling_back": meddlings,
    }
)
configs = st.builds(
    FlowConfig,
    flow=st.just(FLOW_ID),
    worker=st.integers(0, 31),
    chunk_lanes=st.sampled_from([1, 7, 32, 352]),
    open_tensors=st.integers(1, 5),
    congestion=st.booleans(),
    first_window=st.sampled_from([1, 2, 32]),
)


def random_values(rng: np.random.Generator, lanes: int) -> Floats:
    """Return any bit patterns: also infinities and NaNs must arrive as they were."""
    return rng.integers(0, 2**32, lanes, dtype=np.uint32).view(np.float32)


def random_service(rng: np.random.Generator, config: FlowConfig, lanes: int, lossy: bool) -> ServiceClass:
    chunks, layer = config.chunks(lanes), int(rng.integers(0, LAYER_CLASSES))
    magnitudes = rng.integers(0, MAGNITUDE_CLASSES, chunks, dtype=np.uint8)
    if not lossy:
        return ServiceClass(layer, magnitudes)
    accounts = int(rng.integers(1, 9))
    share = rng.choice([0.0, 0.03, 0.3, 1.0], accounts)
    return ServiceClass(
        layer,
        magnitudes,
        rng.integers(0, accounts, chunks, dtype=np.uint16),
        (share * lanes / accounts).astype(np.uint64),
    )


def transfer(config: FlowConfig, shape: dict[str, Any], lossy: bool) -> tuple[World, list[Floats]]:
    """Return a few tensors, some at once and some one after the other, and the checks that hold of each."""
    rng = np.random.default_rng(shape["seed"])
    world = World(config, **shape)
    vectors = []
    for _ in range(int(rng.integers(1, 7))):
        lanes = int(rng.integers(1, 40 * config.chunk_lanes))
        vectors.append(random_values(rng, lanes))
        world.submit(vectors[-1], random_service(rng, config, lanes, lossy))
        world.step(int(rng.integers(0, 50)))
    world.run()
    assert sorted(world.deliveries) == sorted(world.settlements) == list(range(1, len(vectors) + 1))
    for number, values in enumerate(vectors, 1):
        check(values, world.deliveries[number], world.settlements[number])
    return world, vectors


@settings(max_examples=EXAMPLES, print_blob=True, suppress_health_check=list(HealthCheck))
@given(config=configs, shape=worlds)
def test_a_flow_ends_within_its_budgets_and_loses_no_account(
    config: FlowConfig, shape: dict[str, Any]
) -> None:
    note(f"World({config!r}, **{shape!r})")
    transfer(config, shape, lossy=True)


@settings(max_examples=EXAMPLES, print_blob=True, suppress_health_check=list(HealthCheck))
@given(config=configs, shape=worlds)
def test_without_budgets_every_bit_arrives(config: FlowConfig, shape: dict[str, Any]) -> None:
    note(f"World({config!r}, **{shape!r})")
    world, vectors = transfer(config, shape, lossy=False)
    for number, values in enumerate(vectors, 1):
        assert world.deliveries[number].complete
        np.testing.assert_array_equal(world.deliveries[number].values.view(np.uint32), values.view(np.uint32))
    assert world.sender.counts.droppable == 0


def test_all_of_it_follows_from_the_seed() -> None:
    def story(seed: int) -> list[Any]:
        lossy = Faults(jitter=MS, loss=0.2, duplicate=0.2)
        world = World(FlowConfig(FLOW_ID), seed, lossy, lossy, Meddling(trim=0.3, mark=0.3))
        world.submit(
            np.arange(100_000, dtype=np.float32), ServiceClass(budgets=np.array([10_000], np.uint64))
        )
        world.run()
        return [world.clock.now, world.sender.counts, world.settlements[1].delivered.tolist()]

    assert story(5) == story(5)
    assert story(5) != story(6)


@pytest.mark.parametrize(
    ("service", "probes"), [(LOSSLESS, 0), (ServiceClass(budgets=np.array([20_000], np.uint64)), 1)]
)
def test_an_undisturbed_transfer_repeats_nothing(service: ServiceClass, probes: int) -> None:
    """The only probe tells the receiver what may be missing."""
    world = World(FlowConfig(FLOW_ID, first_window=1000))
    values = np.arange(100_000, dtype=np.float32)
    world.submit(values, service)
    world.run()
    counts = world.sender.counts
    chunks = -(-100_000 // 352)
    assert (counts.chunks, counts.resent, counts.probes, counts.timeouts) == (chunks, 0, probes, 0)
    assert counts.packets == chunks + probes + 1  # and that the final word came
    assert world.deliveries[1].complete
    assert world.receiver.settled


quiet = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "there": st.builds(Faults, delay=st.sampled_from([1_000, MS]), jitter=st.sampled_from([0, MS])),
        "back": st.builds(Faults, delay=st.sampled_from([1_000, MS]), jitter=st.sampled_from([0, MS])),
        "meddling": meddlings,
        "meddling_back": meddlings,
    }
)


@settings(max_examples=examples(100), print_blob=True, suppress_health_check=list(HealthCheck))
@given(config=configs, shape=quiet, lossy=st.booleans())
def test_no_timer_fires_because_of_a_trim(config: FlowConfig, shape: dict[str, Any], lossy: bool) -> None:
    """Whatever is trimmed, also protected chunks, probes and answers: only what vanishes needs a timer."""
    note(f"World({config!r}, **{shape!r})")
    world, _ = transfer(replace(config, min_probe=0.05), shape, lossy)
    assert world.sender.counts.timeouts == 0


def budget(lanes: int) -> ServiceClass:
    return ServiceClass(budgets=np.array([lanes], np.uint64))


def frame_type(frame: bytes) -> FlowType:
    return FlowType(frame[FRAME_OVERHEAD] & 15)


def chunk_index(frame: bytes) -> int:
    return int.from_bytes(frame[FRAME_OVERHEAD + 12 : FRAME_OVERHEAD + 16], "big")


def sent(world: World) -> list[tuple[FlowType, int]]:
    """(type, DSCP) of every packet the sender sent."""
    return [(frame_type(frame), frame[15] >> 2) for frame in world.there.seen]


@pytest.mark.parametrize(
    ("given_lanes", "lost_chunks"), [(0, 0), (31, 0), (32, 1), (63, 1), (64, 2), (640, 20)]
)
def test_as_much_is_lost_as_the_budget_allows_and_no_more(given_lanes: int, lost_chunks: int) -> None:
    world = World(FlowConfig(FLOW_ID, chunk_lanes=32, first_window=100), meddling=Meddling(trim=1.0))
    values = np.ones(32 * 100, np.float32)
    world.submit(values, budget(given_lanes))
    world.run()
    settlement = world.settlements[1]
    check(values, world.deliveries[1], settlement)
    assert settlement.returned.lanes == 32 * lost_chunks
    exposed = min(EXPOSED * given_lanes // 32, 100)
    assert settlement.trimmed == world.sender.counts.droppable == exposed
    assert (settlement.resent, settlement.timeouts) == (exposed - lost_chunks, 0)
    assert settlement.probes == bool(given_lanes)  # what was trimmed is known to be lost: nobody has to ask


def test_accounts_are_kept_apart() -> None:
    """One account's room is not for another's chunks, of which every second one is lost."""
    world = World(FlowConfig(FLOW_ID, chunk_lanes=32), there=Faults(loss=0.5))
    values = np.ones(32 * 100, np.float32)
    accounts = np.repeat(np.array([0, 1], np.uint16), 50)
    world.submit(values, ServiceClass(accounts=accounts, budgets=np.array([0, 32 * 10], np.uint64)))
    world.run()
    check(values, world.deliveries[1], world.settlements[1])
    assert world.deliveries[1].received[:50].all()
    assert world.settlements[1].missing.tolist() == [0, 320]
    assert world.deliveries[1].missing == (0, 320)


def test_what_is_lost_beyond_the_budget_is_sent_again_at_once_and_protected() -> None:
    """No timer either: what was sent after them has arrived."""
    world = World(FlowConfig(FLOW_ID, chunk_lanes=32))
    first_copies: set[int] = set()

    def lose_odd_first_copies(frame: bytes) -> bool:
        odd = is_chunk(frame) and chunk_index(frame) % 2 == 1 and chunk_index(frame) not in first_copies
        first_copies.update([chunk_index(frame)] if odd else [])
        return odd

    world.there.drop = lose_odd_first_copies
    values = np.arange(32 * 20, dtype=np.float32)
    world.submit(values, budget(32 * 4))
    world.run()
    settlement = world.settlements[1]
    check(values, world.deliveries[1], settlement)
    assert (settlement.returned.lanes, settlement.resent, settlement.timeouts) == (128, 6, 0)
    chunks = [frame for frame in world.there.seen if is_chunk(frame)]
    assert all(is_protected(frame) and frame[15] == RELIABLE_CLASS for frame in chunks[20:])
    assert sum(not is_protected(frame) for frame in chunks[:20]) == 4 * EXPOSED
    assert all(is_protected(frame) == (frame[15] & 3 == ECT) for frame in chunks)


def test_a_lost_final_word_is_asked_for_again() -> None:
    world = World(FlowConfig(FLOW_ID))
    stops: list[bytes] = []

    def lose_three_stops(frame: bytes) -> bool:
        stops.extend([frame] if frame_type(frame) is FlowType.STOP else [])
        return len(stops) <= 3

    world.back.drop = lose_three_stops
    world.submit(np.ones(1000, np.float32))
    world.run()
    assert world.deliveries[1].complete
    assert world.settlements[1].probes == 3
    assert world.settlements[1].timeouts == 2  # questions after the first, which was unanswered
    assert len(stops) == 4
    assert world.receiver.settled


def test_a_lost_confirmation_is_given_again_when_the_final_word_comes_again() -> None:
    world = World(FlowConfig(FLOW_ID), there=Faults(duplicate=1.0))  # so the probe is answered twice
    lost: list[bytes] = []

    def lose_first_confirmation(frame: bytes) -> bool:
        if frame_type(frame) is FlowType.STOP and not lost:
            lost.append(frame)
            return True
        return False

    world.there.drop = lose_first_confirmation
    world.submit(np.ones(1000, np.float32))
    world.run()
    assert lost
    assert world.receiver.settled
    assert world.sender.verdicts[FlowVerdict.LATE] == 1


def test_what_arrives_after_the_final_word_changes_nothing() -> None:
    world = World(FlowConfig(FLOW_ID, chunk_lanes=32))
    held: list[bytes] = []

    def hold_two(frame: bytes) -> bool:
        kept = is_chunk(frame) and chunk_index(frame) in {3, 7}
        held.extend([frame] if kept else [])
        return kept

    world.there.drop = hold_two
    values = np.arange(1, 32 * 10 + 1, dtype=np.float32)
    world.submit(values, budget(64))
    world.run()
    before = world.deliveries[1].values.copy()
    for frame in held:
        world.right.receive(frame)
    assert world.receiver.verdicts[FlowVerdict.LATE] == 2
    check(values, world.deliveries[1], world.settlements[1])
    np.testing.assert_array_equal(world.deliveries[1].values, before)


def test_a_hole_is_a_loss_when_what_was_sent_later_has_been_there_for_a_while() -> None:
    """On a slower path it may arrive later; of the last chunk nobody knows; a repeat is not lost again."""
    sender = FlowSender(FlowConfig(FLOW_ID, chunk_lanes=1))
    sender.submit(np.ones(4, np.float32))
    sender.poll(0)
    head, holes = Head(FLOW_ID, 0, 1, 4), np.array([True, False, True, False])
    assert sender.on_packet(Bitmap(head, 0, 0, holes).encode(), 10) is FlowVerdict.ACCEPTED
    assert sender.poll(19) == ([], 20)  # half a round trip of 10, and its variation, 5
    ((payload, _),), _ = sender.poll(20)
    chunk = decode(payload)
    assert isinstance(chunk, Chunk)
    assert chunk.index == 1
    for now in range(21, 40):
        assert sender.on_packet(Bitmap(head, 0, 0, holes).encode(), now) is FlowVerdict.DUPLICATE
        assert sender.poll(now)[0] == []
    assert (sender.counts.resent, sender.counts.timeouts) == (1, 0)


def test_a_probe_that_overtakes_its_chunks_gives_up_none_of_them() -> None:
    """Packets take a fast and a slow path in turn, and the budget would allow to lose them all."""
    world = World(FlowConfig(FLOW_ID), there=Faults(delay=100_000), back=Faults(delay=100_000))
    turns = count()

    def every_second_one_is_slow(frame: bytes) -> bool:
        if next(turns) % 2:
            return False
        world.clock.after(180_000, lambda: world.right.receive(frame))
        return True

    world.there.drop = every_second_one_is_slow
    for _ in range(20):
        world.submit(np.ones(352 * 13, np.float32), budget(352 * 13))
    world.run()
    assert all(settlement.complete for settlement in world.settlements.values())
    assert world.sender.counts.resent == 0
    assert world.sender.counts.timeouts == 0


def test_an_old_report_of_a_trim_does_not_give_up_a_chunk_sent_again() -> None:
    sender = FlowSender(FlowConfig(FLOW_ID, chunk_lanes=1))
    sender.submit(np.ones(4, np.float32))
    sender.poll(0)
    old = Bitmap(Head(FLOW_ID, 0, 1, 4), 0, 1, np.array([True]), trimmed=True).encode()
    assert sender.on_packet(old, 10) is FlowVerdict.ACCEPTED
    assert [decode(datagram.payload).__class__ for datagram in sender.poll(10)[0]] == [Chunk]
    for _ in range(5):
        assert sender.on_packet(old, 20) is FlowVerdict.DUPLICATE
        assert sender.poll(20)[0] == []


def test_room_is_given_back_when_what_was_missing_arrives_after_all() -> None:
    sender = FlowSender(FlowConfig(FLOW_ID, chunk_lanes=1))
    sender.submit(np.ones(2, np.float32), budget(1))
    sender.poll(0)

    def bitmap(answers: int, *bits: bool, trimmed: bool = False) -> bytes:
        return Bitmap(Head(FLOW_ID, 0, 1, 2), answers, 0, np.array(bits), trimmed=trimmed).encode()

    sender.on_packet(bitmap(0, True, True, trimmed=True), 10)  # one may be missing, the other is sent again
    again, _ = sender.poll(10)
    assert [decode(datagram.payload).__class__ for datagram in again] == [Chunk]
    sender.on_packet(bitmap(0, True, False), 40)  # here the missing one is
    _, deadline = sender.poll(50)
    assert deadline is not None
    ((payload, _),), _ = sender.poll(deadline)
    assert decode(payload).number == 2  # type: ignore[union-attr]
    not_the_second = Bitmap(Head(FLOW_ID, 0, 1, 2), 2, 1, np.array([False]))
    sender.on_packet(not_the_second.encode(), deadline + 10)  # the question was sent well after that copy
    ((payload, _),), _ = sender.poll(deadline + 1000)
    assert decode(payload).final  # type: ignore[union-attr]
    assert sender.counts.resent == 1  # there is room for the second now


def test_an_answer_is_complete_with_its_last_part() -> None:
    """A question half of whose answer was lost counts as one that was not answered."""
    for parts, timeouts in ((1, 1), (2, 0)):
        sender = FlowSender(FlowConfig(FLOW_ID, chunk_lanes=1, first_window=20_000))
        sender.submit(np.ones(10_000, np.float32))
        _, deadline = sender.poll(0)
        assert deadline is not None
        sender.poll(deadline)
        head, bits = Head(FLOW_ID, 0, 1, 10_000), np.ones(10_000, np.bool_)
        bits[-1] = False
        for first in (0, 8192)[:parts]:
            answer = Bitmap(head, 1, first, bits[first : first + 8192])
            sender.on_packet(answer.encode(), deadline + 1)
        _, deadline = sender.poll(deadline + 1)
        assert deadline is not None
        sender.poll(deadline)
        assert sender.counts.timeouts == timeouts


def test_a_bitmap_of_many_parts_is_one_answer() -> None:
    config = FlowConfig(FLOW_ID, chunk_lanes=1, first_window=50_000)
    world = World(config, seed=3, there=Faults(loss=0.05), back=Faults(loss=0.2))
    values = np.arange(20_000, dtype=np.float32)
    world.submit(values, budget(900))
    world.run()
    check(values, world.deliveries[1], world.settlements[1])
    assert 0 < world.settlements[1].returned.lanes <= 900
    assert world.settlements[1].resent >= 20


def test_front_layers_overtake_back_layers() -> None:
    """Submitted last, delivered first: every packet leaves in the order of its layer."""
    world = World(FlowConfig(FLOW_ID, first_window=8))
    for layer in (3, 2, 0):
        world.sender.submit(np.ones(352 * 50, np.float32), ServiceClass(layer=layer))
    world.left.pump()
    world.run()
    assert list(world.deliveries) == [3, 2, 1]
    codes = [code for kind, code in sent(world) if kind is FlowType.CHUNK]
    assert codes == sorted(codes, reverse=True)


def test_the_terms_go_ahead_of_the_chunks_and_without_budgets_there_are_none() -> None:
    for service, terms in (
        (ServiceClass(layer=2), []),
        (ServiceClass(layer=2, budgets=np.array([1], np.uint64)), [(FlowType.PROBE, RELIABLE_DSCP)]),
    ):
        world = World(FlowConfig(FLOW_ID))
        world.submit(np.ones(352 * 3, np.float32), service)
        world.run()
        chunks = [(FlowType.CHUNK, dscp(2))] * 3
        assert sent(world) == [*terms, *chunks, (FlowType.STOP, RELIABLE_DSCP)]


def test_an_outage_delays_and_does_no_more() -> None:
    world = World(FlowConfig(FLOW_ID), there=Faults(delay=MS), back=Faults(delay=MS))
    world.there.drop = lambda frame: 5 * MS < world.clock.now < 30_000 * MS
    values = np.arange(352 * 500, dtype=np.float32)
    world.submit(values)
    world.run(limit=60)
    assert world.deliveries[1].complete
    assert 30_000 * MS < world.settlements[1].ended < 31_500 * MS


def test_a_receiver_refuses_terms_beyond_its_bound() -> None:
    config = FlowConfig(FLOW_ID, max_loss=0.1)
    sender, receiver = FlowSender(config), FlowReceiver(config)
    sender.submit(np.ones(1000, np.float32), budget(101))
    terms, _, *rest = sender.poll(0)[0]
    for datagram in (terms, *rest):
        receiver.on_packet(datagram.payload, 0)
    assert receiver.verdicts[FlowVerdict.BEYOND_BOUND] == 1
    assert receiver.deliveries() == []


def test_a_sender_refuses_a_final_word_beyond_its_budget() -> None:
    sender = FlowSender(FlowConfig(FLOW_ID, chunk_lanes=1))
    sender.submit(np.ones(4, np.float32), budget(1))
    sender.poll(0)
    stop = Stop(Head(FLOW_ID, 0, 1, 4), 0, 0, np.array([True, False, True, False]))
    assert sender.on_packet(stop.encode(), 1) is FlowVerdict.BEYOND_BOUND
    assert sender.settlements() == []
    assert sender.waiting() == [1]


def test_an_answer_about_what_was_never_sent_is_refused() -> None:
    sender = FlowSender(FlowConfig(FLOW_ID, chunk_lanes=1, first_window=2))
    sender.submit(np.ones(4, np.float32))
    sender.poll(0)
    head = Head(FLOW_ID, 0, 1, 4)
    everything = np.ones(4, np.bool_)
    assert sender.on_packet(Bitmap(head, 0, 0, everything).encode(), 1) is FlowVerdict.BAD_BITMAP
    assert sender.on_packet(Stop(head, 0, 0, None).encode(), 1) is FlowVerdict.BAD_BITMAP
    assert sender.on_packet(Bitmap(head, 2, 0, everything[:1]).encode(), 1) is FlowVerdict.BAD_INDEX
    assert sender.on_packet(Stop(Head(FLOW_ID, 0, 2, 4), 0, 0, None).encode(), 1) is FlowVerdict.BAD_TENSOR
    assert sender.counts.chunks == 2


def test_a_receiver_remembers_no_more_than_agreed() -> None:
    """A sender that had ended tensor 1 may open tensor 5 of 4; packets of tensor 1 are old from then on."""
    world = World(FlowConfig(FLOW_ID, open_tensors=4))
    for _ in range(12):
        world.sender.submit(np.ones(10, np.float32))
    world.left.pump()
    world.run()
    assert sorted(world.deliveries) == list(range(1, 13))
    chunk = Chunk(Head(FLOW_ID, 0, 1, 1), 0, 0, bytes(40)).encode()
    assert world.receiver.on_packet(chunk, 0) is FlowVerdict.LATE
    beyond = Chunk(Head(FLOW_ID, 0, 17, 1), 0, 0, bytes(40)).encode()
    assert world.receiver.on_packet(beyond, 0) is FlowVerdict.BAD_TENSOR


@pytest.mark.parametrize(
    ("values", "service", "error", "match"),
    [
        (np.ones(4, np.float64), LOSSLESS, TypeError, "float32"),
        (np.ones((2, 2), np.float32), LOSSLESS, TypeError, "one-dimensional"),
        (np.ones(0, np.float32), LOSSLESS, ValueError, "1 to"),
        (np.ones(4, np.float32), ServiceClass(accounts=np.zeros(3, np.uint16)), ValueError, "3 accounts"),
        (np.ones(4, np.float32), ServiceClass(magnitudes=np.zeros(9, np.uint8)), ValueError, "9 magnitudes"),
        (np.ones(4, np.float32), ServiceClass(budgets=np.zeros(129, np.uint64)), ValueError, "at most 128"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(
    values: Any, service: ServiceClass, error: type[Exception], match: str
) -> None:
    sender = FlowSender(FlowConfig(FLOW_ID))
    with pytest.raises(error, match=match):
        sender.submit(values, service)
    assert sender.idle


def test_tensors_may_become_ready_in_any_order() -> None:
    world = World(FlowConfig(FLOW_ID, open_tensors=2))
    for number in (4, 2, 3, 1):
        world.submit(np.full(10, number, np.float32), number=number)
    with pytest.raises(ValueError, match="before"):
        world.submit(np.ones(10, np.float32), number=3)
    world.run()
    assert {number: float(d.values[0]) for number, d in world.deliveries.items()} == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_tensor_that_waits_for_its_turn_asks_nothing() -> None:
    """Its answer came, and urgent tensors have the window for longer than any time-out."""
    world = World(FlowConfig(FLOW_ID, first_window=1, congestion=True), back=Faults(delay=MS))
    world.there.change = mark  # so that the window stays at one chunk
    world.submit(np.ones(352 * 4, np.float32), ServiceClass(layer=3))
    world.step(2)
    world.submit(np.ones(352 * 300, np.float32), ServiceClass(layer=0))
    world.run()
    assert list(world.deliveries) == [2, 1]
    assert world.settlements[1].ended > 300 * MS
    assert world.sender.counts.timeouts == 0
    assert world.settlements[1].probes <= 6


def test_marks_shrink_the_window_and_are_counted_chunk_by_chunk() -> None:
    """The chunks of every second round trip, as the receiver tells kinds apart."""
    config = FlowConfig(FLOW_ID, first_window=16)
    sender, receiver = FlowSender(config), FlowReceiver(config)
    sender.submit(np.ones(352 * 15, np.float32))
    for place, datagram in enumerate(sender.poll(0)[0]):
        receiver.on_packet(datagram.payload, 0, datagram.traffic_class | (CE if 3 <= place < 8 else 0))
    for datagram in receiver.poll(0)[0]:
        sender.on_packet(datagram.payload, 1)
    assert receiver.counts.marked == sender.counts.marked == 5
    assert sender.window.shrunk == 1  # once in a round trip, at its first mark


def test_a_question_stays_behind_the_chunks_and_passes_them_when_it_must_be_repeated() -> None:
    sender = FlowSender(FlowConfig(FLOW_ID))
    sender.submit(np.ones(10, np.float32), ServiceClass(layer=2))
    _, deadline = sender.poll(0)
    codes = []
    for _ in range(5):
        assert deadline is not None
        ((_, traffic_class),), deadline = sender.poll(deadline)
        codes.append(traffic_class >> 2)
    assert codes == [dscp(2)] + [RELIABLE_DSCP] * 4
    assert sender.window.shrunk == 2


def test_an_early_stop_is_content_with_the_share_that_came() -> None:
    """The last tenth is under way when the rest has come: not waited for, and in the residual."""
    lanes = 32 * 100
    values = np.arange(1, lanes + 1, dtype=np.float32)
    for early in (True, False):
        world = World(FlowConfig(FLOW_ID, chunk_lanes=32, first_window=200, early_stop=early))
        held: list[bytes] = []

        def hold_the_last(frame: bytes, world: World = world, held: list[bytes] = held) -> bool:
            late = is_chunk(frame) and chunk_index(frame) >= 90
            if late:
                held.append(frame)
                world.clock.after(MS // 10, lambda: world.right.receive(frame))
            return late

        world.there.drop = hold_the_last
        world.submit(values, budget(lanes // 10))
        world.run()
        check(values, world.deliveries[1], world.settlements[1])
        assert world.settlements[1].returned.lanes == (lanes // 10 if early else 0)
