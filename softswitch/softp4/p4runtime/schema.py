# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's messages and calls, from the descriptors in ``p4runtime.binpb``.

The names are those of the modules that protoc makes. The messages carry no types for a type checker.
"""

from pathlib import Path
from typing import Any, Final

from softp4.protobuf import Schema

API_VERSION: Final = "1.5.0"
"""The release of P4Runtime that the descriptors are of."""

_SCHEMA: Final = Schema((Path(__file__).parent / "p4runtime.binpb").read_bytes())

p4types_pb2: Final[Any] = _SCHEMA.module("p4/config/v1/p4types.proto")
p4info_pb2: Final[Any] = _SCHEMA.module("p4/config/v1/p4info.proto")
p4data_pb2: Final[Any] = _SCHEMA.module("p4/v1/p4data.proto")
p4runtime_pb2: Final[Any] = _SCHEMA.module("p4/v1/p4runtime.proto")
status_pb2: Final[Any] = _SCHEMA.module("google/rpc/status.proto")
METHODS: Final = _SCHEMA.service("p4.v1.P4Runtime")
