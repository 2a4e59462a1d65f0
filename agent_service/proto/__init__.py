# SPDX-License-Identifier: Apache-2.0
"""The agent service: its definition and the stubs generated from it."""
