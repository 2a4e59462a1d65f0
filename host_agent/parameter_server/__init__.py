# SPDX-License-Identifier: Apache-2.0
"""A model kept by parameter servers: which server has which part, and what its members say to each other.

Of Parameter Flow (``docs/parameter-server.md#parameter-flow``): ``value_filter`` and ``residual`` say what of
a worker's updates waits, ``feed`` what a server sends of its model's, ``payload`` in which form; ``clocks``
who waits for whom. ``update_server`` and ``update_worker`` put them together, ``journal`` remembers.

Knows neither torch nor sockets: ``weir.host_agent.torch.parameter_server`` is the side of torch and of the
network. ``docs/parameter-server.md`` says how it is used.
"""
