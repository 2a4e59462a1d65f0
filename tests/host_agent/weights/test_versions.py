# SPDX-License-Identifier: Apache-2.0
"""Versions of weights: a replica that follows has the trainer's bits, and notices when it has not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.host_agent.compression.change_code import Form
from weir.host_agent.weights.versions import BodyError, Layout, Replica, Source, digest_of

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.float64,
)


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {str(dtype): (torch.randn(17, 23, generator=generator) * 50).to(dtype) for dtype in DTYPES} | {
        "scalar": torch.tensor(float(seed))
    }


def change(tensors: dict[str, torch.Tensor], share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        flat = tensor.view(-1)
        chosen = torch.rand(flat.numel(), generator=generator) < share
        fresh = (torch.randn(flat.numel(), generator=generator) * 50).to(tensor.dtype)
        flat.copy_(torch.where(chosen, fresh, flat))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(
        one[name].view(-1).view(torch.uint8).tolist() == other[name].view(-1).view(torch.uint8).tolist()
        for name in one
    )


def follow_update(replica: Replica, source: Source) -> None:
    replica.follow(memoryview(source.update()), snapshot=False)
    replica.confirm(source.seal())


def follow_snapshot(replica: Replica, source: Source) -> None:
    code, digest = source.snapshot()
    replica.follow(memoryview(code), snapshot=True)
    replica.confirm(digest)


@given(st.lists(st.sampled_from((0.0, 0.01, 0.3, 1.0)), max_size=4), st.integers(0, 3), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_a_replica_that_begins_anywhere_follows(shares: list[float], start: int, seed: int) -> None:
    trainer, engine = weights(seed), weights(seed + 1)
    source, replica = Source(trainer), Replica(engine)
    for number, share in enumerate(shares):
        if number == start:
            follow_snapshot(replica, source)
        change(trainer, share, seed + number)
        update = source.update()
        assert source.seal() == digest_of(trainer)
        if replica.digest is None:
            continue
        replica.follow(memoryview(update), snapshot=False)
        assert replica.digest is None
        replica.confirm(source.digest)
        assert replica.digest == source.digest
        replica.copy_to(engine)
        assert same(engine, trainer)
        assert digest_of(engine) == source.digest


def test_the_engines_weights_stay_until_it_takes_a_version_over() -> None:
    trainer, engine = weights(1), weights(2)
    before = {name: tensor.clone() for name, tensor in engine.items()}
    source, replica = Source(trainer), Replica(engine)
    follow_snapshot(replica, source)
    assert same(engine, before)


def test_an_update_of_another_version_is_found_and_a_snapshot_mends_it() -> None:
    trainer = weights()
    source, replica = Source(trainer), Replica(weights())
    follow_snapshot(replica, source)
    change(trainer, 0.3, 1)
    source.update()
    change(trainer, 0.3, 2)
    with pytest.raises(BodyError):
        follow_update(replica, source)
    assert replica.digest is None
    follow_snapshot(replica, source)
    assert replica.digest == source.digest


def test_an_update_that_nobody_confirms_is_undone() -> None:
    trainer, engine = weights(1), weights(2)
    source, replica = Source(trainer), Replica(engine)
    follow_snapshot(replica, source)
    before, digest = {name: tensor.clone() for name, tensor in trainer.items()}, source.digest
    change(trainer, 0.3, 1)
    replica.follow(memoryview(source.update()), snapshot=False)
    assert replica.waits and replica.digest is None
    replica.undo()
    assert not replica.waits and replica.digest == digest
    replica.copy_to(engine)
    assert same(engine, before)
    change(trainer, 0.3, 2)
    source.seal()
    follow_snapshot(replica, source)
    follow_update(replica, source)
    replica.undo()  # it is confirmed: nothing happens
    assert replica.digest == source.digest


@given(st.integers(0, 100_000), st.integers(1, 255), st.booleans())
@settings(deadline=None, max_examples=60)
def test_damage_is_found(at: int, flip: int, snapshot: bool) -> None:
    trainer = weights()
    source, replica = Source(trainer), Replica(weights())
    follow_snapshot(replica, source)
    change(trainer, 0.3, 1)
    code = bytearray(source.update())
    digest = source.seal()
    if snapshot:
        code = bytearray(source.snapshot()[0])
    code[at % len(code)] ^= flip
    with pytest.raises(BodyError):
        replica.follow(memoryview(bytes(code)), snapshot=snapshot)
        replica.confirm(digest)


@given(st.integers(0, 100_000))
def test_a_message_that_is_cut_is_found(at: int) -> None:
    source, replica = Source(weights()), Replica(weights())
    body, _ = source.snapshot()
    with pytest.raises(BodyError):
        replica.follow(memoryview(body[: at % len(body)]), snapshot=True)


def test_a_message_is_no_longer_than_a_subscriber_takes() -> None:
    trainer = weights()
    source = Source(trainer)
    for name in trainer:
        trainer[name].view(-1).view(torch.uint8).random_(0, 2)
    assert len(source.update()) <= source.layout.most_bytes
    assert len(source.snapshot()[0]) <= source.layout.most_bytes


def test_only_what_changed_is_in_an_update() -> None:
    trainer = {"frozen": torch.randn(100_000), "trained": torch.randn(1000)}
    source = Source(trainer)
    trainer["trained"][7] += 1
    assert len(source.update()) < 100
    assert source.changed == 1
    assert source.forms == {Form.LIST: 1}


def test_layouts_differ_by_name_dtype_and_shape() -> None:
    layouts = [
        Layout(tensors).fingerprint
        for tensors in (
            {"w": torch.zeros(6)},
            {"v": torch.zeros(6)},
            {"w": torch.zeros(6, dtype=torch.int32)},
            {"w": torch.zeros(2, 3)},
        )
    ]
    assert len(set(layouts)) == 4
