# SPDX-License-Identifier: Apache-2.0
"""The messages of agent.proto. Their types are in the .pyi beside this file, which protoc writes."""

from weir.agent_service.proto import SCHEMA

globals().update(vars(SCHEMA.module("agent.proto")))
