# SPDX-License-Identifier: Apache-2.0
"""The service between controller and host agents: its protocol, the agents' client, heartbeats and TLS.

Both sides import this room, and it imports neither. It may know grpc, its own stubs and the version of the
packets, no more, so that a training environment has all it needs.
"""

from typing import Final

import softp4.channels  # noqa: F401 - the first to import grpc in a training process; see there

MOST_SLOTS: Final = 256  # switch slots of a job that does not say how many: more in flight gains nothing
PUBLISHER_SLOTS: Final = 2
"""Slots of a job that publishes: one as of any job, and one whose multicast group is its subscribers'."""
