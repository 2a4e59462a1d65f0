# SPDX-License-Identifier: Apache-2.0
"""The tests of test_hook_encodings.py, with gradients on a GPU."""

import pytest

from tests.host_agent.torch.test_hook_encodings import *  # noqa: F403 its tests

DEVICE = "cuda"

pytestmark = pytest.mark.cuda
