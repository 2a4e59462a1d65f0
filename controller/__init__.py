# SPDX-License-Identifier: Apache-2.0
"""The control plane: from a topology file and the jobs that agents join to what every switch holds.

- *What there is*: wiring, tiers, topology (the file, checked), addresses, qos (its ``qos`` section).
- *Who wants what*: jobs, slots, registry (a state machine without I/O), memory (running jobs over a restart).
- *What switches must hold*: desired (a pure function), tables (one module per control of the P4 program),
  entries, sync (the difference, in a safe order), failover (how jobs leave a spine).
- *Switches*: switch_client (P4Runtime), codec, p4rt_errors, program, queue_driver (BMv2's Thrift), reconciler
  (keeps one switch), fabric (all of them).
- *The process*: service (what agents call), server, daemon, reporting and status (``weir status``), cli.

May know the wire's definition, the compiled programs, the agents' service and P4Runtime. Knows no torch, no
host agent and no switch's insides: BMv2, the soft switch and Tofino differ in their entries in the topology
file.
"""
