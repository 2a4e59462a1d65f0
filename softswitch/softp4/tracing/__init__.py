# SPDX-License-Identifier: Apache-2.0
"""Traces: what happens to a frame on its way through a program, recorded, decoded and printed.

`recorder` records, `events` decodes, `printing` and `notation` write for people, `tracer` follows a running
switch. Knows the program model, codegen, the runtime and state.
"""
