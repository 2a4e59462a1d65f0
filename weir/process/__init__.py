# SPDX-License-Identifier: Apache-2.0
"""Processes that Weir starts: children that end with their parent, pools, their time, what they leave."""
