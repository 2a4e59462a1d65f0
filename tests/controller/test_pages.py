# SPDX-License-Identifier: Apache-2.0
"""A status of any size arrives, in pages that gRPC carries."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.agent_service.proto import agent_pb2
from weir.agent_service.status_pages import whole_status
from weir.controller import pages
from weir.controller.jobs import Job, JobError, Member
from weir.controller.pages import Page, filled
from weir.controller.topology import single_switch

HOST = single_switch(1, "127.0.0.1:1").hosts[0]


def job(number: int, members: int) -> Job:
    ranks = {rank: Member(rank, HOST, 9347) for rank in range(members)}
    return Job(
        id=1000 - number, name=f"job {number}", token="", size=members + 1, members=ranks, number=number
    )


def status(job: Job, members: Any) -> Any:
    rows = [agent_pb2.MemberStatus(rank=member.rank, host="h" * 60) for member in members]
    return agent_pb2.JobStatus(job_id=job.id, name=job.name, members=rows)


@given(
    st.lists(st.integers(0, 40_000), max_size=5),
    st.lists(st.integers(0, 3000), max_size=6),
    st.integers(500, 50_000),
)
def test_all_pages_together_are_the_status(switches: list[int], jobs: list[int], most: int) -> None:
    made = [
        lambda place=place, size=size: agent_pb2.SwitchStatus(name=f"s{place}", problem="x" * size)
        for place, size in enumerate(switches)
    ]
    known = [job(number, members) for number, members in enumerate(jobs, start=1)]
    sizes = []

    def ask(request: Any) -> Any:
        reply = filled(Page.of(request.page_token), made, known[::-1], status)
        sizes.append(reply.ByteSize())
        return agent_pb2.StatusReply.FromString(reply.SerializeToString())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_BYTES", most)
        whole = whole_status(ask)
    assert [len(one.problem) for one in whole.switches] == switches
    assert [one.name for one in whole.jobs] == [f"job {number}" for number in range(1, len(jobs) + 1)]
    assert [[m.rank for m in one.members] for one in whole.jobs] == [list(range(members)) for members in jobs]
    part = max([*switches, pages.MOST_MEMBERS * 70]) + 200
    assert all(size <= most + part for size in sizes)


def test_a_job_that_ends_between_two_pages_takes_none_of_the_others_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    known = [job(number, 1) for number in (1, 2, 3)]
    replies = []

    def ask(request: Any) -> Any:
        replies.append(filled(Page.of(request.page_token), [], known, status))
        known[:] = [one for one in known if one.number != 2]
        return replies[-1]

    assert [one.name for one in whole_status(ask).jobs] == ["job 1", "job 3"]


def test_a_controller_that_repeats_a_page_is_not_asked_for_ever() -> None:
    replies = iter(range(10))

    def ask(_request: Any) -> Any:
        next(replies)
        return agent_pb2.StatusReply(next_page_token="0.1.0")

    assert list(whole_status(ask).jobs) == []


@pytest.mark.parametrize("token", ["1", "0.0.x", "0.0.-1", "1.1." + "9" * 40, "ü.1.1"])
def test_a_token_of_nobody_is_refused(token: str) -> None:
    with pytest.raises(JobError, match="page_token"):
        Page.of(token)
