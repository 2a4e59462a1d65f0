# SPDX-License-Identifier: Apache-2.0
"""Outer steps: workers make several steps by themselves, then sum how far each of them has come.

:mod:`.stage` makes the outer step, :mod:`.sums` the sum that it takes.
"""
