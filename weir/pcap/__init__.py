# SPDX-License-Identifier: Apache-2.0
"""``weir pcap``: the rounds in a capture file, readable, and checked against what the protocol promises."""
