# SPDX-License-Identifier: Apache-2.0
"""A model kept by parameter servers: which server has which part, and what its members say to each other.

Knows neither torch nor sockets: ``weir.host_agent.torch.parameter_server`` is the side of torch and of the
network. ``docs/parameter-server.md`` says how it is used.
"""
