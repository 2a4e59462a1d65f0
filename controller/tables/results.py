# SPDX-License-Identifier: Apache-2.0
"""``results``: the addresses of a result's copy for each child that waits for it."""

from weir.controller.addresses import ip_number
from weir.controller.entries import TableEntry
from weir.wire.addresses import mac_number
from weir.wire.definition import WHOLE_PATH

RECEIVERS = "WeirEgress.results.receivers"
DELIVER = "WeirEgress.results.deliver"


def receiver(
    *,
    job_id: int,
    number: int,
    port: int,
    src_mac: str,
    src_ip: str,
    dst_mac: str,
    dst_ip: str,
    dst_port: int,
    path: int,
    mask: int = WHOLE_PATH,
) -> TableEntry:
    """Send a result for child ``number`` that leaves by ``port`` from the aggregation address to the
    child's.

    path, mask: of the workers that get it, those bits of the path that are the same. Of a worker itself, all.
    """
    return TableEntry(
        RECEIVERS,
        (("job", job_id), ("worker", number), ("port", port)),
        DELIVER,
        (
            ("src_mac", mac_number(src_mac)),
            ("src_ip", ip_number(src_ip)),
            ("dst_mac", mac_number(dst_mac)),
            ("dst_ip", ip_number(dst_ip)),
            ("dst_port", dst_port),
            ("mask", mask),
            ("path", path),
        ),
    )
