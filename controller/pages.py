# SPDX-License-Identifier: Apache-2.0
"""The pages of a status: where one begins, and what of all there is goes into it. No I/O."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.agent_service.proto import agent_pb2
from weir.controller.jobs import Job, JobError, Member, Refusal

PAGE_BYTES: Final = 1 << 20  # then a page ends: gRPC's clients take 4 MB
MOST_MEMBERS: Final = 1024  # of a job in one part of a page
_TOKEN: Final = re.compile(r"(\d{1,9})\.(\d{1,18})\.(\d{1,9})")


@dataclass(frozen=True)
class Page:
    """The beginning of a page: a switch's place, then a job's number and its member's rank."""

    switch: int = 0
    job: int = 0
    rank: int = 0

    @classmethod
    def of(cls, token: str) -> "Page":
        """Return the page of a token; the first one of an empty token. Raises JobError for any other."""
        if not token:
            return cls()
        found = _TOKEN.fullmatch(token)
        if found is None:
            raise JobError(Refusal.INVALID, f"page_token {token[:40]!r} is none of this controller's")
        return cls(*map(int, found.groups()))

    @property
    def token(self) -> str:
        """Return what to ask for the page with."""
        return f"{self.switch}.{self.job}.{self.rank}"


def filled(
    page: Page,
    switches: Sequence[Callable[[], Any]],
    jobs: Sequence[Job],
    status: Callable[[Job, Sequence[Member]], Any],
) -> Any:
    """Return the ``StatusReply`` that begins at ``page``.

    Args:
        page: where to begin.
        switches: each makes a ``SwitchStatus``.
        jobs: all of them.
        status: makes the ``JobStatus`` of a job with some of its members.
    """
    reply, size = agent_pb2.StatusReply(), 0
    for place in range(page.switch, len(switches)):
        reply.switches.append(switches[place]())
        size += reply.switches[-1].ByteSize()
        if size >= PAGE_BYTES:
            reply.next_page_token = Page(place + 1).token
            return reply
    for job in sorted(jobs, key=lambda job: job.number):
        if job.number < page.job:
            continue
        first = page.rank if job.number == page.job else 0
        members = [member for rank, member in sorted(job.members.items()) if rank >= first]
        reply.continued = reply.continued or first > 0
        for start in range(0, max(len(members), 1), MOST_MEMBERS):
            part, more = members[start : start + MOST_MEMBERS], len(members) > start + MOST_MEMBERS
            reply.jobs.append(status(job, part))
            size += reply.jobs[-1].ByteSize()
            if more or size >= PAGE_BYTES:
                after = Page(len(switches), job.number, part[-1].rank + 1) if more else None
                reply.next_page_token = (after or Page(len(switches), job.number + 1)).token
                return reply
    return reply
