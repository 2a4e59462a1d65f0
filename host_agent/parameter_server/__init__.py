# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: one server and one worker as state machines without I/O, and the parts they compose.

``server_machine`` and ``worker_machine`` put together who waits for whom (``clocks``); which server has what,
and what moves (``routing``, ``migration``); what a reader lacks, and what of it waits (``feed``,
``value_filter``, ``residual``), in which form (``payload``). ``messages`` is the codec, ``flow_ends`` brings
messages to flows, ``journal`` remembers.

Knows neither torch nor sockets: ``weir.host_agent.torch.parameter_server`` is the side of torch and of the
network. ``docs/guides/parameter-server.md`` says how it is used.
"""
