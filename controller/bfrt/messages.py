# SPDX-License-Identifier: Apache-2.0
"""BfRuntime's messages and calls, from the descriptors in ``bfruntime.binpb``.

They are of ``bfruntime.proto`` in p4lang/open-p4studio (Apache-2.0). The messages carry no types for a type
checker.
"""

from pathlib import Path
from typing import Any, Final

from softp4.protobuf import Schema

_SCHEMA: Final = Schema((Path(__file__).parent / "bfruntime.binpb").read_bytes())

bfruntime_pb2: Final[Any] = _SCHEMA.module("bfruntime.proto")
status_pb2: Final[Any] = _SCHEMA.module("google/rpc/status.proto")
METHODS: Final = _SCHEMA.service("bfrt_proto.BfRuntime")
