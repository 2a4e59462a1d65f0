# SPDX-License-Identifier: Apache-2.0
"""The virtual-time driver: hosts, links and switches under one clock and one seed, in one process.

Runs the state machines of host_agent, the compiled switch of softswitch and what the controller would write
into it; it brings the clock, links, queues and the peers that are not ours (TCP). It implements nothing of
Weir a second time, and nothing in the other rooms but benchmarks and tests imports it.
"""
