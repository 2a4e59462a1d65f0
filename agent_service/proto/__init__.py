# SPDX-License-Identifier: Apache-2.0
"""The agent service: its definition, and the messages and calls made of it.

The messages are in ``agent_pb2``, with types for a type checker; ``METHODS`` are the service's calls.
"""

from pathlib import Path
from typing import Final

from softp4.protobuf import Schema

SCHEMA: Final = Schema((Path(__file__).parent / "agent.binpb").read_bytes())
METHODS: Final = SCHEMA.service("weir.agents.v1.Agents")
