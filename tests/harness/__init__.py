# SPDX-License-Identifier: Apache-2.0
"""What packet-level tests share: a P4 target behind one interface, and frames of the protocol."""
