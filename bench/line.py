# SPDX-License-Identifier: Apache-2.0
"""The least time that a line allows an all-reduce: its share of the time is the share of the line."""

from weir.train.wirebytes import TCP_PAYLOAD, WEIR_PAYLOAD


def least_seconds(elements: float, workers: int, rate_bps: int, *, ring: bool) -> float:
    """Return what an all-reduce of float32 values takes at the line's payload rate.

    That is its rate without the headers of full packets, from Ethernet up: of TCP segments, or of Weir's
    packets. Weir sends every value once in each direction, a ring of n over TCP 2 (n - 1) / n times.
    """
    if ring:
        return 2 * (workers - 1) / workers * 32 * elements / (rate_bps * TCP_PAYLOAD)
    return 32 * elements / (rate_bps * WEIR_PAYLOAD)
