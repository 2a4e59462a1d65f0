# SPDX-License-Identifier: Apache-2.0
"""Results for one worker, or for all but one: the others get the header, which advances their slot."""

import pytest

from tests.harness.lab import Job, Lab, Uplink, group_of
from weir.wire.definition import AUDIENCE_EXCEPT, Event, Flag, PacketType, path

A, B, C, D = group_of(1), group_of(1000), group_of(2**31), group_of(77)
ELSEWHERE = Flag.PROTECTED | Flag.ELSEWHERE
ABOUT = {"nexts": [5]}
THERE = {"audience": path(0, 4), "nexts": [5]}  # of another rack


def added(*groups: list[int]) -> list[int]:
    """Lane-wise sum modulo 2^32."""
    return [sum(lanes) % 2**32 for lanes in zip(*groups, strict=True)]


class TestRoot:
    """The one switch that all workers are at, or the spine over racks."""

    def results(self, job: Job, wanted: set[int], **total: object) -> list[object]:
        """Return what must come out: the sums for some of three workers, headers for the others."""
        bare = {**total, "lanes": {}, "flags": ELSEWHERE}
        return sorted(job.result(w, **(total if w in wanted else bare)) for w in range(3))

    @pytest.mark.parametrize("racks", [False, True], ids=["workers", "racks"])
    @pytest.mark.parametrize("one", [0, 1, 2])
    def test_for_one(self, lab: Lab, one: int, racks: bool) -> None:
        job = lab.job(3, racks=racks)
        audience = path(9, one) if racks else path(one)  # some worker of the rack
        about = {"audience": audience, **ABOUT}
        assert job.send(0, lanes={0: A}, included=0b1, **about) == []
        assert job.send(1, lanes={0: B, 5: C}, included=0b10, **about) == []
        total = {"lanes": {0: added(A, B, D), 5: C}, "included": 0b111, **about}
        last = {"lanes": {0: D, 5: [0] * 32}, "included": 0b100, **about}
        assert job.send(2, **last) == self.results(job, {one}, **total)
        for worker, again in enumerate([{"lanes": {0: A}, **about}, {"lanes": {0: B, 5: C}, **about}]):
            want = total if worker == one else {**total, "lanes": {}, "flags": ELSEWHERE}
            if lab.target.headroom >= 1024 or worker == 1:
                assert job.send(worker, **again) == [job.result(worker, **want, again=True)]
        assert lab.events()[Event.ROUND_COMPLETE] == 1

    def test_for_all_but_one(self, lab: Lab) -> None:
        job = lab.job(3)
        about = {"audience": AUDIENCE_EXCEPT | path(1), **ABOUT}
        job.send(0, lanes={0: A}, **about)
        job.send(1, lanes={0: B}, **about)
        total = {"lanes": {0: added(A, B, D)}, "included": 0b111, **about}
        assert job.send(2, lanes={0: D}, **about) == self.results(job, {0, 2}, **total)

    def test_racks_get_what_one_of_their_workers_does_not_want(self, lab: Lab) -> None:
        job = lab.job(3, racks=True)
        about = {"audience": AUDIENCE_EXCEPT | path(0, 1), **ABOUT}
        for rack, lanes in enumerate([A, B]):
            job.send(rack, lanes={0: lanes}, included=1 << rack, **about)
        total = {"lanes": {0: added(A, B, D)}, "included": 0b111, **about}
        assert job.send(2, lanes={0: D}, included=0b100, **about) == self.results(job, {0, 1, 2}, **total)

    def test_a_round_without_lanes_has_none_elsewhere(self, lab: Lab) -> None:
        job = lab.job(2)
        assert job.send(0, audience=path(0)) == []
        assert job.send(1, audience=path(0)) == job.results(audience=path(0), included=0)


class TestRack:
    """The switch of a rack, workers 0 and 1 of it at ports 1 and 2, the spine at port 3."""

    @pytest.fixture
    def rack(self, lab: Lab) -> Uplink:
        rack = lab.uplink(lab.job(2, slots=20, ports=[1, 2]), port=3)
        rack.job.send(0, lanes={0: A}, **THERE)
        up = rack.partial(lanes={0: added(A, B)}, included=0b11, **THERE)
        assert rack.job.send(1, lanes={0: B}, **THERE) == [up]
        lab.events()
        return rack

    def test_lanes_that_went_to_another_rack_advance_this_one(self, lab: Lab, rack: Uplink) -> None:
        bare = {"flags": ELSEWHERE, "audience": path(0, 4), "nexts": [3], "included": 0b11, "count": 2}
        assert rack.send(PacketType.RESULT, **bare) == rack.job.results(**bare)
        for worker, lanes in enumerate([A, B]):
            answer = rack.job.result(worker, **bare, again=True)
            assert rack.job.send(worker, lanes={0: lanes}, **THERE) == [answer]
        assert rack.send(PacketType.RESULT, **bare) == []  # once
        assert lab.events()[Event.RESULT_STORED] == 1

    def test_a_spine_that_lacks_the_result_gets_the_sums_again(self, lab: Lab, rack: Uplink) -> None:
        rack.send(PacketType.RESULT, flags=ELSEWHERE, included=0b11, audience=path(0, 4), nexts=[3])
        lab.events()
        sums = {"flags": Flag.PROTECTED | Flag.ANSWER, "lanes": {0: added(A, B)}, "included": 0b11}
        answer = rack.partial(**sums, audience=path(0, 4), nexts=[3])
        for _ in range(2):
            assert rack.send(PacketType.REPEAT, lanes={0: D}, **THERE) == [answer]
        assert lab.events()[Event.PARTIAL_REPEATED] == 2

    def test_lanes_for_one_of_this_rack_are_kept_from_the_other(self, lab: Lab) -> None:
        rack = lab.uplink(lab.job(2, slots=20, ports=[1, 2]), port=3)
        about = {"audience": path(1), **ABOUT}
        for worker in (0, 1):
            rack.job.send(worker, lanes={0: A}, **about)
        total = {"lanes": {0: D}, "included": 0b11, **about}
        bare = {**total, "lanes": {}, "flags": ELSEWHERE}
        expected = sorted([rack.job.result(0, **bare), rack.job.result(1, **total)])
        assert rack.send(PacketType.RESULT, **total) == expected
        assert rack.job.send(1, lanes={0: A}, **about) == [rack.job.result(1, **total, again=True)]
        assert rack.job.send(0, lanes={0: A}, **about) == [rack.job.result(0, **bare, again=True)]
