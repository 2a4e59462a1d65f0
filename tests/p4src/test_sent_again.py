# SPDX-License-Identifier: Apache-2.0
"""The class of packets that a switch sends again: where one was lost, the next of its class would be lost."""

import pytest

from tests.harness.lab import RELIABLE, Lab, Lanes, group_of
from weir.wire.definition import ECT, GROUP_LANES, LAYER_CLASSES, Event, Flag, PacketType, dscp

EVERY_TARGET = True

ANSWER = Flag.PROTECTED | Flag.ANSWER


def lanes(lab: Lab, times: int) -> Lanes:
    """Return lanes of as many groups as the target takes, and can add to a packet without lanes, this many
    times those of a worker.
    """
    groups = min(lab.target.lane_groups, lab.target.headroom // (4 * GROUP_LANES))
    return {group: [times * lane for lane in group_of(3 + 100 * group)] for group in range(groups)}


@pytest.mark.parametrize("layer", range(LAYER_CLASSES))
def test_a_result_sent_again_passes_in_the_top_class(lab: Lab, layer: int) -> None:
    """The first one has the class of its layer; so has the next round's."""
    job = lab.job(2)
    mine = {"lanes": lanes(lab, 1), "layer": layer}
    total = {"lanes": lanes(lab, 2), "layer": layer}
    first = dscp(layer) << 2 | ECT
    later = RELIABLE if lab.target.raises_repeats else first
    for round in (1, 2):
        assert job.send(0, round=round, **mine) == []
        assert job.send(1, round=round, **mine) == job.results(round=round, **total, traffic_class=first)
        for worker in (0, 1):
            answer = job.result(worker, round=round, included=0b11, **total, traffic_class=later)
            assert job.send(worker, round=round, **mine) == [answer]
            assert job.send(worker, round=round, **mine) == [answer]
    assert lab.events()[Event.DUPLICATE_ANSWERED] == 8


@pytest.mark.parametrize("layer", range(LAYER_CLASSES))
def test_what_a_rack_sends_its_spine_again_keeps_its_class(lab: Lab, layer: int) -> None:
    """Sums of back layers must not overtake those of front ones only because a worker repeats its packet."""
    rack = lab.uplink(lab.job(2, ports=[1, 2]), port=3, whole=True)
    job, mine = rack.job, {"lanes": lanes(lab, 1), "layer": layer}
    first = dscp(layer) << 2 | ECT
    sums = {"lanes": lanes(lab, 2), "included": 0b11, "layer": layer, "traffic_class": first}
    total = {"lanes": lanes(lab, 7), "included": 0b110, "layer": layer, "traffic_class": first}
    job.send(0, **mine)
    for _ in range(2):
        assert job.send(1, **mine) == [rack.partial(**sums)]
    assert rack.send(PacketType.REPEAT, layer=layer) == [rack.partial(**sums, flags=ANSWER)]
    assert rack.send(PacketType.RESULT, **total) == job.results(**{**total, "included": 0b11, "count": 2})
    assert rack.send(PacketType.REPEAT, layer=layer) == [rack.result(**total)]
    expected = {Event.CONTRIBUTION: 1, Event.PARTIAL_SENT: 1, Event.PARTIAL_REPEATED: 2}
    assert lab.events() == expected | {Event.RESULT_STORED: 1, Event.RESULT_REPEATED: 1}
