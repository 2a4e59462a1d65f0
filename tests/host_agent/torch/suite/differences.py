# SPDX-License-Identifier: Apache-2.0
"""Torch's tests that Gloo passes and Weir does not, and why not. One that passes must leave the list."""

from typing import Final

_BY_REASON: Final = {
    "torch has monitored_barrier for Gloo's own class alone; Weir's errors name the ranks that are missing": (
        "test_monitored_barrier_failure_order",
        "test_monitored_barrier_gloo",
        "test_monitored_barrier_gloo_rank_0_timeout",
        "test_monitored_barrier_gloo_subgroup",
    ),
}

DIFFERENCES: Final = {name: reason for reason, names in _BY_REASON.items() for name in names}
"""The reason, by the test's name."""
