# SPDX-License-Identifier: Apache-2.0
"""Steps with a parameter server in virtual time: what its link carries, and that both directions are used."""

import pytest

from weir.bench.simulated.servers import Setting, ring, tcp_server, weir_server

PARAMETERS = 100_000
RATE = 200_000_000


def test_the_servers_link_carries_one_gradient_and_one_model_however_many_workers() -> None:
    two, eight = (weir_server(Setting(workers, PARAMETERS, RATE)) for workers in (2, 8))
    assert eight.server_in == pytest.approx(two.server_in, rel=0.02)
    assert eight.server_out == pytest.approx(two.server_out, rel=0.02)
    assert 1.0 < eight.server_in / (4 * PARAMETERS) < 1.25
    peer = tcp_server(Setting(8, PARAMETERS, RATE))
    assert peer.server_in > 8 * 4 * PARAMETERS


def test_what_comes_down_overlaps_with_what_goes_up() -> None:
    setting = Setting(4, PARAMETERS, RATE)
    apart = weir_server(setting, bucket=PARAMETERS).seconds
    together = weir_server(setting, bucket=PARAMETERS // 8).seconds
    assert together < 0.75 * apart


def test_sparse_pushes_take_less_time_than_the_ring() -> None:
    setting = Setting(4, PARAMETERS, RATE, density=0.05)
    assert weir_server(setting).seconds < 0.5 * ring(setting).seconds
