# SPDX-License-Identifier: Apache-2.0
"""Weir: gradients summed inside the network.

    import weir.torch                              # registers the torch.distributed backend "weir"
    with weir.local_cluster(workers=4) as cluster: # a switch and a controller on this machine
        ...

Importing ``weir`` alone imports neither torch nor gRPC.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir.cluster import LocalCluster, local_cluster

__all__ = ["LocalCluster", "local_cluster"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from weir import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
