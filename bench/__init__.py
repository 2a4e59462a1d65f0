# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, each against the strongest peer: Gloo, BMv2, hand-written C, the same run without a part.

``weir bench NAME`` (cli) runs them; they print tables and draw plots. They may use every other room, and no
other room may import this one.
"""
