# SPDX-License-Identifier: Apache-2.0
"""Sub-groups by ``dist.split_group``, and the device a group is bound to.

Torch splits groups whose backend says that it can, on an accelerator that ``init_process_group`` was given
as ``device_id``; device meshes then make their groups so, too. A switch has nothing to split: a part is a new
job, as any group.
"""

# mypy: disable-error-code="override"

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, _DistributedBackendOptions

from weir.host_agent.torch.compiling import never_compiled

DEVICES: Final = ("cpu", "cuda")
"""Types of the devices that tensors can be on."""


def global_ranks(options: _DistributedBackendOptions) -> list[int]:
    """Return the members' global ranks; torch names none for a group of all."""
    return list(options.global_ranks_in_group) or list(range(options.group_size))


@never_compiled
class SplittableGroup(dist.ProcessGroup):
    """A process group that is its own backend, and can be split.

    Args:
        options: what torch made the group of.
        inherited: the ``pg_options`` of a part that is given none.
        create: joins a job for such options and ``pg_options``.
    """

    supports_splitting = True

    def __init__(
        self,
        options: _DistributedBackendOptions,
        inherited: Any,
        create: Callable[[_DistributedBackendOptions, Any], Self],
    ) -> None:
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self.store: Store = options.store
        self.options = inherited  # by this name torch asks for it
        self._create_group = create
        self._global_ranks = global_ranks(options)
        self._default_timeout = options.timeout

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: Any = "",
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> Self | None:
        """Return the group of these ranks of this one, or None where this process is none of them.

        Args:
            ranks: of this group.
            timeout: of the new group; None: this one's.
            opts: a ``GroupOptions``; None: this group's, but for its number of slots.
            group_name: a name that no other group has.
            group_desc: for torch's records.
            device_types: not looked at: one group serves all.
        """
        if self.rank() not in ranks:
            return None
        options = _DistributedBackendOptions()
        options.store = PrefixStore(f"{group_name}/", self.store)
        options.group_rank, options.group_size = list(ranks).index(self.rank()), len(ranks)
        options.timeout = timeout or self._default_timeout
        options.group_id = group_name
        options.global_ranks_in_group = [self._global_ranks[rank] for rank in ranks]
        group = self._create_group(options, opts or self.options)
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "")
        return group

    def get_group_store(self) -> Store:
        """Return the store that the group's ranks share."""
        return self.store

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices that torch finds this backend for."""
        return list(map(torch.device, DEVICES))

    def _get_backend(self, device: torch.device) -> Self:
        if device.type not in DEVICES:
            raise RuntimeError(f"the weir backend has nothing for tensors on {device}")
        return self

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Note the device that ``init_process_group`` was given: torch tells a group by this call alone."""
        self.bound_device_id = device

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        """Return False: FSDP makes its buffers as any tensor."""
        return False

    def perform_nocolor_split(self, _device: torch.device) -> None:
        """Do nothing: a process that is in none of the parts need not take part."""

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the switch counts rounds itself."""
