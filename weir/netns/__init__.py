# SPDX-License-Identifier: Apache-2.0
"""Networks of this machine's own kernel: namespaces, links between them, and clusters on top.

``namespace`` holds namespaces, ``netlink`` makes interfaces in them, ``lab`` builds a network of hosts and
``cluster`` runs switches and controller in it. Nothing but the kernel is needed, and its leave: root's, or
that of an unprivileged user namespace (``gain_root``).
"""

from weir.netns.namespace import Namespace, NamespaceError, gain_root, why_not
from weir.netns.netlink import Link, Links, NetlinkError, TokenBucket
from weir.netns.offloads import offloads_off

__all__ = [
    "Link",
    "Links",
    "Namespace",
    "NamespaceError",
    "NetlinkError",
    "TokenBucket",
    "gain_root",
    "offloads_off",
    "why_not",
]
