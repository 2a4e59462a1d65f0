# SPDX-License-Identifier: Apache-2.0
"""Encodings among workers: masks are united by the switch, sums are of the chosen, groups change size."""

import functools
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
import weir.torch
from tests.harness.effort import examples
from tests.host_agent.torch.worlds import World, raising
from weir.host_agent.collectives.contribution import HostVector
from weir.host_agent.collectives.packing import WholeLanes
from weir.host_agent.collectives.shared_scales import agree, contribute
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK, Encoding
from weir.host_agent.compression.encodings.cost import Occupancy, exchange_cost
from weir.host_agent.compression.encodings.shared_mask import unite
from weir.host_agent.compression.sparsifiers import Span, Sparsifier, SparsifierOptions, sparsifier_names
from weir.host_agent.torch.process_group import WeirProcessGroup

SIZE = 3


def group() -> WeirProcessGroup:
    found = dist.distributed_c10d._get_default_group()
    assert isinstance(found, WeirProcessGroup)
    return found


def on_group(run: Callable[[], Any]) -> Any:
    work = group().submit(run)
    work.wait()
    return work.result()


# -------------------------------------------------------------------------------------------- masks, scales


def random_words(seed: int, count: int, density: float, rank: int) -> npt.NDArray[np.uint32]:
    random = np.random.default_rng((seed, rank))
    words = random.integers(0, 2**32, count, dtype=np.uint32)
    region = np.repeat(random.random(-(-count // 40)) < density, 40)[:count]
    return np.where(region & (random.random(count) < max(density, 0.2)), words, 0).astype(np.uint32)


def united(seed: int, count: int, density: float, levels: int) -> bytes:
    words = random_words(seed, count, density, dist.get_rank())
    communicator = group().collectives.communicator
    return bytes(on_group(lambda: unite(communicator, words, levels).tobytes()))


@given(
    seed=st.integers(0, 2**31),
    count=st.integers(0, 5000),
    density=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    levels=st.integers(1, 3),
)
@settings(max_examples=examples(25))
def test_the_union_is_the_or_of_all(world: World, seed: int, count: int, density: float, levels: int) -> None:
    words = [random_words(seed, count, density, rank) for rank in range(SIZE)]
    expected = np.bitwise_or.reduce(np.stack(words)).tobytes()
    assert world.run(united, seed, count, density, levels) == [expected] * SIZE


def sum_in_packets(packet: int, dense: bool) -> tuple[bytes, list[int]]:
    communicator, rank = group().collectives.communicator, dist.get_rank()
    values = torch.randn(600 * SCALE_BLOCK, generator=torch.Generator().manual_seed(rank)).numpy()
    values.reshape(-1, 64)[np.random.default_rng(rank).random(values.size // 64) < 0.98] = 0
    notes = np.zeros(SIZE, np.uint32)
    notes[rank] = 10 + rank

    def run() -> bytes:
        vector, form = HostVector(values), WholeLanes(SIZE)
        scales = agree(communicator, vector, str, SCALE_BLOCK, form, dense=dense, notes=notes)
        mine = contribute(communicator, vector, scales, form, packet)
        assert (mine.rows is None) == dense
        where = slice(None) if dense else mine.places()
        sent = np.zeros(values.size // packet, np.bool_)
        sent[where] = mine.occupied()
        assert (sent == values.reshape(-1, packet).any(axis=1)).all()
        return mine.add(communicator, keep=False)[0].values().tobytes()

    return on_group(run), notes.tolist()


def test_packets_change_no_sum_and_notes_travel_along(world: World) -> None:
    outcomes = [
        outcome
        for packet in (32, 64, 256)
        for dense in (False, True)
        for outcome in world.run(sum_in_packets, packet, dense)
    ]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0][1] == [10, 11, 12]


# ------------------------------------------------------------------------------------------------- the hook


class Drawn(Sparsifier):
    """Every rank draws elements of its own, in runs, and remembers the unions that it is shown."""

    name, summary = "drawn", "For tests."
    often = 0.02

    def __init__(self) -> None:
        super().__init__(SparsifierOptions())
        self.sent: dict[str, torch.Tensor] = {}
        self.unions: dict[str, torch.Tensor] = {}

    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        sent = gradient * torch.from_numpy(self.draw(self.rank, span)).to(gradient.device)
        self.sent[span.name] = sent.cpu()
        return sent

    def draw(self, rank: int, span: Span) -> npt.NDArray[np.bool_]:
        """Return which elements a rank draws."""
        random = np.random.default_rng((rank, self.step, span.start))
        runs = random.random(-(-span.length // 5)) < self.often
        return np.repeat(runs, 5)[: span.length]

    def observe(self, total: torch.Tensor, union: torch.Tensor, span: Span) -> None:
        assert not total[~union].any()
        self.unions[span.name] = union


class DrawnByAll(Drawn):
    """What any of them has drawn is sent by all."""

    name, fills_union = "drawn-by-all", True


class DrawnInLists(DrawnByAll):
    """Everybody knows how much any of them draws at most, which is little."""

    name, often = "drawn-in-lists", 0.003

    def quota_of(self, span: Span) -> int:
        return max(int(np.count_nonzero(self.draw(rank, span))) for rank in range(self.workers))


DRAWN = {"drawn": Drawn, "drawn-by-all": DrawnByAll, "drawn-in-lists": DrawnInLists}


class Run:
    """Gradients that are fed to the state directly, in buckets as told."""

    def __init__(self, kind: str, together: bool = True, **options: Any) -> None:
        torch.manual_seed(0)
        sizes = (40, 90, 7)
        self.module = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(sizes)))
        sparsifier: Any = DRAWN[kind]() if kind in DRAWN else kind
        self.state = weir.torch.HookState(self.module, sparsifier=sparsifier, **options)
        named = list(self.module.named_parameters())
        parts = [named] if together else [[one] for one in reversed(named)]
        self.layouts = [
            BucketLayout.of(i, [name for name, _ in part], [p for _, p in part], SCALE_BLOCK)
            for i, part in enumerate(parts)
        ]

    def step(self, number: int, spoil: bool = False) -> dict[str, torch.Tensor]:
        """Return one step; what each parameter's gradient became."""
        became = {}
        for i, layout in enumerate(self.layouts):
            gradients = [gradient(number, segment.name, segment.length) for segment in layout]
            bucket = torch.cat(gradients)
            if spoil and dist.get_rank() == 1:
                bucket[-1] = torch.inf
            last = i == len(self.layouts) - 1
            work = self.state.group.submit(functools.partial(self.state.average_bucket, layout, bucket, last))
            work.wait()
            for segment in layout:
                became[segment.name] = bucket[segment.in_bucket].clone()
        return became


def gradient(step: int, name: str, length: int) -> torch.Tensor:
    seed = int.from_bytes(f"{step} {name} {dist.get_rank()}".encode(), "big") % 2**31
    return torch.randn(length, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (len(name) - 6)


def followed(kind: str, options: dict[str, Any]) -> None:
    run = Run(kind, **options)
    drawn = run.state.exchanger.gradients.sparsifier
    assert isinstance(drawn, Drawn)
    owed: dict[str, torch.Tensor] = {}
    for number in range(4):
        became = run.step(number)
        stats, plan, elements = run.state.last_step, run.state.plans[0], 0
        assert stats is not None
        for name, total in became.items():
            # In host memory: a GPU's division by 3 is rounded otherwise.
            before = gradient(number, name, total.numel()).cpu() / SIZE + owed.get(name, 0.0)
            after = run.state.residual(name)
            assert after is not None
            owed[name] = after = after.cpu()
            delivered = before.double() - after.double()
            assert torch.equal(delivered.float().double(), delivered)
            summed = delivered.clone()
            dist.all_reduce(summed)
            assert torch.equal(summed.float(), total.cpu())
            if name in drawn.unions:
                elements += follow(drawn, name, plan.encodings[name], before, after)
        if not run.state.exchanger.gradients.exclude:
            assert stats.union_elements == elements
            assert stats.sent_elements == sum(int(torch.count_nonzero(sent)) for sent in drawn.sent.values())
        assert stats.entered == stats.included
        assert 0 < stats.blocks_sent <= stats.blocks


def follow(drawn: Drawn, name: str, encoding: Encoding, before: torch.Tensor, after: torch.Tensor) -> int:
    """Check one parameter's union and residual; returns how many elements were chosen."""
    chosen = (drawn.sent[name] != 0).to(torch.uint8)
    own = chosen.bool()
    dist.all_reduce(chosen, dist.ReduceOp.MAX)
    union = drawn.unions[name]
    if encoding.mask_block is not None:
        blocks = torch.nn.functional.pad(chosen, (0, -chosen.numel() % encoding.mask_block)).view(
            -1, encoding.mask_block
        )
        wide = blocks.any(dim=1, keepdim=True).expand_as(blocks).reshape(-1)[: union.numel()]
        assert torch.equal(wide, union)
    mine = union if drawn.fills_union else own
    assert torch.equal(before[~mine], after[~mine])
    assert bool((after[mine].abs() <= before.abs().max() * 2.0**-24).all())
    return int(union.sum() if drawn.fills_union else chosen.sum())


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoding": "shared-mask:1"},
        {"encoding": "shared-mask:4"},
        {"encoding": "blocks:32"},
        {"exclude": ["1d"]},
    ],
    ids=str,
)
def test_what_the_format_selects_is_summed_and_all_else_is_kept(
    world: World, kind: str, options: dict[str, Any]
) -> None:
    world.run(followed, kind, options)


def costs(kind: str, options: dict[str, Any]) -> int:
    """Compare bytes on the wire with the model's, whenever no packet was sent twice; returns how often."""
    run, quiet = Run(kind, **options), 0
    drawn, encoder = run.state.exchanger.gradients.sparsifier, run.state.exchanger.encoder
    assert isinstance(drawn, Drawn)
    connection, member, counted = group().connection, group().connection.membership, []
    ask = encoder.notes

    def notes(*args: Any) -> npt.NDArray[np.uint32]:
        counted.append(ask(*args))
        return counted[-1]

    encoder.notes = notes  # type: ignore[method-assign]
    for number in range(8):
        before = connection.stats
        run.step(number)
        after, stats, plan = connection.stats, run.state.last_step, run.state.plans[0]
        assert stats is not None
        parts, masks = [], []
        for segment in run.layouts[0]:
            every = torch.zeros(SIZE, segment.length, dtype=torch.uint8)
            every[dist.get_rank()] = drawn.sent[segment.name] != 0
            dist.all_reduce(every, dist.ReduceOp.MAX)
            parts.append(Occupancy(every.bool().numpy()))
            masks.append(plan.encodings[segment.name].mask_block)
        model = exchange_cost(
            parts,
            masks,
            packet_block=plan.packet_block,
            levels=plan.levels,
            slots=member.slot_count,
            counters=counted[-1].size // SIZE,
            fills_union=drawn.fills_union,
            capacities=None if plan.capacities is None else list(plan.capacities.values()),
            fill=member.fill,
            regions=[plan.regions.get(segment.name, SCALE_BLOCK) for segment in run.layouts[0]],
            form=run.state.exchanger.form,
        )
        again = [
            getattr(now, what) for now in (before, after) for what in ("timeouts", "probes", "duplicates")
        ]
        predicted = stats.reduces <= (plan.levels if any(masks) else 1) + 1
        if number and predicted and again[:3] == again[3:]:  # the first step has agreed on the state, too
            quiet += 1
            assert (plan.capacities is not None) == (kind == "drawn-in-lists")
            assert (stats.bytes_up, stats.bytes_down) == (model.up[dist.get_rank()], model.down)
    return quiet


@pytest.mark.parametrize(
    ("kind", "encoding", "lane_bits"),
    [
        ("drawn", "auto", 32),
        ("drawn", "shared-mask:2", 16),
        ("drawn-by-all", "shared-mask:1", 32),
        ("drawn", "dense", 8),
        ("drawn-in-lists", "auto", 32),
        ("drawn-in-lists", "auto", 8),
    ],
)
def test_an_exchange_costs_what_the_model_says(
    world: World, kind: str, encoding: str, lane_bits: int
) -> None:
    assert sum(world.run(costs, kind, {"encoding": encoding, "lane_bits": lane_bits})) > 0


def several_ways(kind: str, options: dict[str, Any]) -> None:
    """One bucket, many buckets, a checkpoint in between, a step that fails: all give the same bits."""
    straight = Run(kind, **options)
    parted = Run(kind, together=False, process_group=raising(), **options)
    first, second = Run(kind, **options), Run(kind, together=False, **options)
    for number in range(5):
        expected = straight.step(number)
        if number == 3:
            with pytest.raises(weir.torch.NonFiniteError, match=r"rank 1: .*element \d+, bucket"):
                parted.step(number, spoil=True)
            second.state.load_state_dict(pickle.loads(pickle.dumps(first.state.state_dict())))
        again = (second if number >= 3 else first).step(number)
        other = parted.step(number)
        for name, total in expected.items():
            assert torch.equal(total, again[name]) and torch.equal(total, other[name])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("topk", {"density": 0.02, "exclude": ["1d"]}),
        ("topk", {"density": 0.02, "encoding": "shared-mask:4"}),
        ("exdyna", {"density": 0.02}),
        ("dense", {"encoding": "blocks:32"}),
    ],
)
def test_neither_buckets_nor_interruptions_change_a_bit(
    world: World, kind: str, options: dict[str, Any]
) -> None:
    world.run(several_ways, kind, options)


# --------------------------------------------------------------------------------------- groups that change


def resized(name: str) -> list[bytes]:
    """Return three train, two go on without the last one, and take in a newcomer in its place."""
    everyone, rank = group(), dist.get_rank()
    pair = dist.new_group([0, 1], backend="weir")
    run = Run(name, density=0.05)
    seen = [run.step(number) for number in range(3)]
    if rank < 2:
        run.state.bind(run.module, pair)
        seen += [run.step(number) for number in range(3, 5)]
        run.state.bind(run.module, everyone)
    else:
        run = Run(name, density=0.05)
    seen += [run.step(number) for number in range(5, 7)]
    assert run.state.step == 7
    assert run.state.exchanger.gradients.sparsifier.step == 7
    agreed = plain({what: run.state.state_dict()[what] for what in ("step", "sparsifier", "encodings")})
    dist.barrier()
    if rank < 2:
        dist.destroy_process_group(pair)
    return [digest(step) for step in seen] + [repr(agreed).encode()]


def plain(state: Any) -> Any:
    """Without tensors: to compare."""
    if isinstance(state, dict):
        return [(key, plain(value)) for key, value in sorted(state.items())]
    return state.tolist() if isinstance(state, torch.Tensor) else state


def digest(became: dict[str, torch.Tensor]) -> bytes:
    return b"".join(became[name].numpy().tobytes() for name in sorted(became))


@pytest.mark.parametrize("name", sparsifier_names())
def test_a_group_that_shrinks_and_grows_stays_in_step(world: World, name: str) -> None:
    first, second, newcomer = world.run(resized, name)
    assert first == second
    assert newcomer[:3] == first[:3]
    assert newcomer[3:] == first[5:]
