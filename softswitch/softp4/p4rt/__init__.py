# SPDX-License-Identifier: Apache-2.0
"""P4Runtime 1.x: the soft switch's control interface over gRPC.

`server` opens the gRPC port, `service` answers its calls, `arbitration` decides who may write, `pipeline`
holds the loaded programs, `entities` dispatches reads and writes to one module per kind of entity.
Knows a `Switch` and its state.
"""
