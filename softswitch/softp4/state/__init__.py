# SPDX-License-Identifier: Apache-2.0
"""A running switch's state: tables, action profiles, cells, meters, queues, replication, value sets, digests.

One class per kind of thing. Each checks what the control plane asks for, remembers it, and puts it into the
native switch; all are thread-safe by one rule (`runtime.bindings.exclusive`). `entry` has the values that
go in and out. Knows the program model, codegen (how things are laid out) and the runtime.
"""
