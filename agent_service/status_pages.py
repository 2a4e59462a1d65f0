# SPDX-License-Identifier: Apache-2.0
"""The controller's status, whose pages are asked for one after the other and put together."""

from collections.abc import Callable
from typing import Any

from weir.agent_service.proto import agent_pb2


def whole_status(ask: Callable[[Any], Any]) -> Any:
    """Return the ``StatusReply`` of all pages. ``ask``: returns the reply to a ``StatusRequest``."""
    whole = ask(agent_pb2.StatusRequest())
    seen = {""}
    while (token := whole.next_page_token) not in seen:
        seen.add(token)
        page = ask(agent_pb2.StatusRequest(page_token=token))
        jobs = list(page.jobs)
        if jobs and whole.jobs and jobs[0].job_id == whole.jobs[-1].job_id:
            whole.jobs[-1].members.extend(jobs.pop(0).members)
        whole.switches.extend(page.switches)
        whole.jobs.extend(jobs)
        whole.next_page_token = page.next_page_token
    whole.next_page_token = ""
    return whole
