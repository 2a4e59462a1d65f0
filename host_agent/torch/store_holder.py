# SPDX-License-Identifier: Apache-2.0
"""The holder of torch's store: a TCP store ends with the process that has it, rank 0's or torchrun's."""

import os

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore


def innermost(store: Store) -> Store:
    """Return the store that has no prefix."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def holds(*, leads: bool) -> bool:
    """Return whether this process holds a TCP store of the job. leads: it is the first, rank 0 or worker 0,
    which does so unless torchrun does.
    """
    return leads and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)


def ends_with(store: Store, *, leads: bool) -> bool:
    """Return whether a store ends with this process. leads: as of ``holds``."""
    return isinstance(innermost(store), TCPStore) and holds(leads=leads)
