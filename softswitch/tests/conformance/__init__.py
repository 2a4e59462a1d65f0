# SPDX-License-Identifier: Apache-2.0
"""p4c's own behavioural tests (`*.p4` with `*.stf`) on the soft switch and on BMv2."""
