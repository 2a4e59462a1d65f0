# SPDX-License-Identifier: Apache-2.0
"""The program model: a v1model program as BMv2's JSON has it, checked and typed. Knows no other room.

`loader.load_program` reads a file; `types.Program` is what it becomes, `ir` and `calculations` what the
program computes. What the switch cannot run is refused here, or by codegen, by name (`errors`).
"""
