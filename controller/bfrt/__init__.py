# SPDX-License-Identifier: Apache-2.0
"""BfRuntime, a Tofino's own interface: its messages, a session, and a switch in the controller's terms."""
