# SPDX-License-Identifier: Apache-2.0
"""Tools that tests share: among others a P4 target behind one interface, and frames of the protocol."""
