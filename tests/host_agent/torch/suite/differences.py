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
    "the error of a timeout does not say 'timed out'": (
        "test_barrier_timeout_full_group",
        "test_barrier_timeout_group",
    ),
    "a future's callback that waits for another collective hangs": ("test_ddp_hook_parity_powerSGD",),
    "DDP.join does not end with divide_by_initial_world_size=False": ("test_ddp_grad_div_uneven_inputs",),
    "torch.profiler sees nothing of Weir": ("test_ddp_profiling_torch_profiler",),
    "sparse tensors are refused": ("test_sparse_all_reduce_sum",),
}

DIFFERENCES: Final = {name: reason for reason, names in _BY_REASON.items() for name in names}
"""The reason, by the test's name."""
