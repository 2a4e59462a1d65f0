# SPDX-License-Identifier: Apache-2.0
"""A pattern of parameters that must be sent whole fits one at least, or is refused."""

import pytest
import torch

from weir.host_agent.compression.local_gradients import LocalGradients
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import create_sparsifier


@pytest.mark.parametrize("pattern", ["0.bias", "*.bias", "[01].weight", "1d"])
def test_a_pattern_that_fits_is_taken(pattern: str) -> None:
    gradients("1d", pattern).join(torch.nn.Sequential(torch.nn.Linear(3, 2)), rank=0, workers=1)


@pytest.mark.parametrize("pattern", ["bias", "*.bais", "1.*", "2d", ""])
def test_a_pattern_that_fits_nothing_is_refused_with_names_that_there_are(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"no parameter is called .*; there are 0\.weight, 0\.bias;"):
        gradients("*.bias", pattern).join(torch.nn.Sequential(torch.nn.Linear(3, 2)), rank=0, workers=1)


def gradients(*exclude: str) -> LocalGradients:
    return LocalGradients(create_sparsifier("topk"), LossPolicy.from_budget(0), exclude=exclude)
