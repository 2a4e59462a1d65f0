# SPDX-License-Identifier: Apache-2.0
"""A `Program` to C: one module per part of the packet's way."""
