# SPDX-License-Identifier: Apache-2.0
"""An executor of what the compiler for Tofino 1 made of a program: its assembly, a ``.bfa``.

It runs containers, not fields: parser states that fill them, stages whose tables read all before any of them
writes, gateways, the bus of action data, the ALUs' instructions, stateful ALUs, hash bits, and the deparser.
Every line is understood or refused, with its number; lines that only say where on the chip something lies
are named as such where they are read. What lines mean is what p4c's assembler (``backends/tofino/bf-asm``)
makes of them.

    assembly ▶ containers ▶ parser, deparser
                          ▶ crossbar ▶ tables (gateways, actions, stateful ALUs) ▶ pipeline ▶ chip
"""
