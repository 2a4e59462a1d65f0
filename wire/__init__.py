# SPDX-License-Identifier: Apache-2.0
"""The one definition of what Weir puts on the wire, and what is generated from it."""
