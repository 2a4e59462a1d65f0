# SPDX-License-Identifier: Apache-2.0
"""The controller's status, whose pages are asked for one after the other and put together."""

from collections.abc import Callable
from typing import Any

from weir.agent_service.proto import agent_pb2


def whole_status(ask: Callable[[Any], Any], job: str = "", token: str = "") -> Any:
    """Return the ``StatusReply`` of all pages.

    Args:
        ask: returns the reply to a ``StatusRequest``.
        job: name of a job, whose id and slots the reply then has.
        token: that job's.
    """
    whole = ask(agent_pb2.StatusRequest(job=job, token=token))
    seen = {""}
    while (page_token := whole.next_page_token) not in seen:
        seen.add(page_token)
        page = ask(agent_pb2.StatusRequest(page_token=page_token, job=job, token=token))
        jobs = list(page.jobs)
        if page.continued:
            whole.jobs[-1].members.extend(jobs.pop(0).members)
        whole.switches.extend(page.switches)
        whole.jobs.extend(jobs)
        whole.next_page_token = page.next_page_token
    whole.next_page_token = ""
    return whole
