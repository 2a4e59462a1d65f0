# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, each against the strongest peer: Gloo, BMv2, hand-written C, the same run without a part.

A suite is a folder with a list of its cases; ``weir bench run SUITE/CASE`` (cli) measures one and reports it.
They may use every other room, and no other room may import this one.
"""
