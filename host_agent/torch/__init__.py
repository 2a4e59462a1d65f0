# SPDX-License-Identifier: Apache-2.0
"""Torch: Weir as torch.distributed and DDP know it.

May know: compression, collectives, transport, and the agent's service, through which a group joins its job.
Knows nothing of P4Runtime, and nothing of the façade, which hands it what starts a local cluster.

Public names, all of them also in ``weir.torch``:

- ``backend.WeirProcessGroup``, ``backend.GroupOptions``, ``backend.register``: the backend "weir";
- ``hook.hook``, ``hook.HookState``, ``step_stats.StepStats``: the DDP communication hook;
- ``compress.compress``, ``compress.CompressedUpdates``: updates in few bits instead of gradients;
- ``overlap.LayersFirst``: gradients are summed while the next forward pass runs, front layers first;
- ``ds_sync.DsSync``: parameters averaged in small groups instead of gradients summed;
- ``connection.GroupBrokenError``: raised by all of them when a worker is lost.
"""
