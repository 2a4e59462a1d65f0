# SPDX-License-Identifier: Apache-2.0
"""Torch's tests that Gloo passes and Weir does not, and why not. One that passes must leave the list."""

from typing import Final

_BY_REASON: Final = {
    "torch has monitored_barrier for Gloo's own class alone; Weir's errors name the ranks that are missing": (
        "test_monitored_barrier_failure_order",
        "test_monitored_barrier_gloo",
        "test_monitored_barrier_gloo_rank_0_timeout",
        "test_monitored_barrier_gloo_subgroup",
        "test_monitored_barrier_wait_all_ranks",
    ),
}

_OF_FILES_BY_REASON: Final = {
    "torch has monitored_barrier for Gloo's own class alone; Weir's errors name the ranks that are missing": (
        "test_c10d_gloo.GlooProcessGroupWithDispatchedCollectivesTests.test_monitored_barrier",
    ),
    "it wants tensors of another size refused that other ranks may send: Weir takes them": (
        "test_c10d_gloo.ProcessGroupGlooTest.test_allgather_checks",
        "test_c10d_gloo.ProcessGroupGlooTest.test_allgather_coalesced_checks",
    ),
    "it wants sparse tensors in allreduce_coalesced refused, which Weir sums": (
        "test_c10d_gloo.ProcessGroupGlooTest.test_allreduce_coalesced_checks",
    ),
    "it wants a RuntimeError for an operator that sparse tensors lack, which is a TypeError": (
        "test_c10d_gloo.ProcessGroupGlooTest.test_sparse_allreduce_checks",
    ),
    "it reads the timeout from ProcessGroupGloo's options object; Weir's is the group's ``timeout``": (
        "test_c10d_gloo.ProcessGroupGlooTest.test_set_gloo_pg_timeout",
    ),
}

DIFFERENCES: Final = {name: reason for reason, names in _BY_REASON.items() for name in names}
"""The reason, by the test's name."""

EITHER_WAY: Final = {
    "test_invalid_static_graph": "it wants each rank's own error; a rank may hear of another's error first",
}
"""Tests that pass or not by chance, and why."""

DIFFERENCES_OF_FILES: Final = {
    name: reason for reason, names in _OF_FILES_BY_REASON.items() for name in names
}
"""The same of the tests in ``pytorch_files``."""
