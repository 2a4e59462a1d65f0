# SPDX-License-Identifier: Apache-2.0
"""The data plane: ports of all kinds and the native loop that runs frames through a switch.

Python opens and watches ports (`ports`); frames stay in C (`csrc`). Knows of the runtime only, and of a
switch no more than the address of its C half.
"""
