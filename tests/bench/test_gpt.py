# SPDX-License-Identifier: Apache-2.0
"""GPT-2, its text, and buckets of its gradients."""

import torch

from weir.bench.gradients.exchange import buckets
from weir.bench.training.gpt import batches, parameter_count, read_tokens
from weir.train.models.gpt import SHAPES, Gpt


def test_gpt2_has_as_many_parameters_as_published_and_buckets_as_of_ddp() -> None:
    assert parameter_count(SHAPES["gpt2"]) == 124_439_808
    with torch.device("meta"):
        layouts = list(buckets(list(Gpt(SHAPES["gpt2"]).named_parameters())))
    assert sum(layout.elements for layout in layouts) == 124_439_808
    assert [layout.index for layout in layouts] == list(range(len(layouts)))
    assert all(4 * layout.elements >= 25 * 2**20 for layout in layouts[1:-1])


def test_a_text_is_the_same_for_all_and_ranks_have_batches_of_their_own() -> None:
    tokens = read_tokens(512)
    assert len(tokens) > 1_000_000 and int(tokens.max()) < 512
    first, again, other = (batches(tokens, rank, 2, 3, 16) for rank in (0, 0, 1))
    assert first.shape == (2, 3, 17)
    assert torch.equal(first, again) and not torch.equal(first, other)
