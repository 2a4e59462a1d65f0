# SPDX-License-Identifier: Apache-2.0
"""The output of ``weir status``: tables for people, plain data for programs."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_STATE_STYLE = {
    "ready": "green",
    "running": "green",
    "attending": "green",
    "connecting": "red",
    "standby": "yellow",
    "given up": "bold red",
}
NEVER = 0xFFFF  # a threshold that no queue reaches
_UNITS = ("B", "kB", "MB", "GB", "TB")


def render(reply: Any, console: Console) -> None:
    """Print a ``StatusReply``."""
    console.print(_switches(reply))
    for switch in reply.switches:
        if switch.problem:
            console.print(Text(f"{switch.name}: {switch.problem}", style="red"))
        console.print(_ports(switch))
        if switch.paths:
            console.print(_paths(switch))
        if switch.events:
            console.print(_events(switch))
        if any(_treated(queue) for queue in switch.queues):
            console.print(_queues(switch))
        if any(row.traffic.packets for row in switch.classes):
            console.print(_classes(switch))
        if switch.losses:
            console.print(_losses(switch))
    for job in reply.jobs:
        console.print(_job(job))
    if not reply.jobs:
        console.print(Text("no jobs", style="dim"))


def as_plain_data(message: Any) -> dict[str, Any]:
    """Return a protobuf message as dictionaries, lists, strings and numbers, fields that are zero
    included.
    """
    return {field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    return as_plain_data(value) if hasattr(value, "DESCRIPTOR") else [_plain(item) for item in value]


def _switches(reply: Any) -> Table:
    table = _table("Switches", "switch", "role", "address", "program", "state", "entries>", "slots used>")
    for switch in reply.switches:
        table.add_row(
            switch.name,
            switch.role,
            switch.address,
            switch.program,
            _state("given up" if switch.given_up else switch.state),
            str(switch.entries),
            f"{switch.slots_used}/{switch.slots}",
        )
    return table


def _ports(switch: Any) -> Table:
    table = _table(
        f"Ports of {switch.name} (traffic of running jobs)",
        "port>",
        "rack" if switch.role == "spine" else "host",
        "address",
        "by",
        "in>",
        "out>",
    )
    for port in switch.ports:
        by = "shared memory" if port.shm_dir else "IP" if port.HasField("claimed") else "network"
        table.add_row(str(port.port), port.host, port.ip, by, _traffic(port.up), _traffic(port.down))
    return table


def _events(switch: Any) -> Table:
    """Return the counters that are not zero, drops in red: the answer to "why does nothing move?"."""
    table = _table(f"What {switch.name} did with packets", "event", "count>", "meaning")
    for event in switch.events:
        if event.count.packets:
            style = "bold red" if event.drop else ""
            table.add_row(event.name, _traffic(event.count), event.help, style=style)
    if not table.row_count:
        table.add_row("none yet", "", "no packet has reached the switch")
    return table


def _paths(switch: Any) -> Table:
    """Return the share of each path in the packets for other racks."""
    total = sum(path.traffic.bytes for path in switch.paths)
    table = _table(f"Paths of {switch.name} ({switch.spray})", "port>", "spine", "sprayed>", "share>")
    for path in switch.paths:
        share = f"{path.traffic.bytes / total:.1%}" if total else ""
        table.add_row(str(path.port), path.spine, _traffic(path.traffic), share)
    return table


def _queues(switch: Any) -> Table:
    """Return the queues that packets have joined, with what became of these."""
    columns = ("queue>", "queued>", "trimmed>", "marked>", "dropped>")
    table = _table(f"Queues of {switch.name} (7 is served first)", *columns)
    for queue in switch.queues:
        if _treated(queue):
            counts = (queue.queued, queue.trimmed, queue.marked, queue.dropped)
            style = "bold red" if queue.dropped.packets else ""
            table.add_row(str(queue.queue), *map(_traffic, counts), style=style)
    return table


def _treated(queue: Any) -> int:
    counts = (queue.queued, queue.trimmed, queue.marked, queue.dropped)
    return sum(count.packets for count in counts)


def _classes(switch: Any) -> Table:
    columns = ("DSCP>", "class", "queue>", "trim at>", "mark at>", "drop at>", "packets>")
    table = _table(f"Classes at {switch.name}", *columns)
    for row in switch.classes:
        limits = (row.trim_at, row.mark_at, row.drop_at)
        words = ("never" if limit == NEVER else str(limit) for limit in limits)
        table.add_row(str(row.dscp), row.name, str(row.queue), *words, _traffic(row.traffic))
    return table


def _losses(switch: Any) -> Table:
    table = _table(f"Simulated loss at {switch.name}", "port>", "direction", "DSCP>", "probability>")
    for loss in switch.losses:
        code = "all" if loss.dscp < 0 else str(loss.dscp)
        table.add_row(str(loss.port), loss.direction, code, f"{loss.probability:g}")
    return table


def _job(job: Any) -> Table:
    slots = f", {job.slot_count} slots" if job.slot_count else ""
    if job.job_id:  # else they are not told
        first = f" from {job.slot_base} on" if job.slot_count else ""
        slots = f"{slots}{first}, id {job.job_id:#010x}"
    where = ", ".join([*job.leaves, *job.spines])
    title = f"Job {job.name}: {job.state} on {where}{slots}"
    table = _table(title, "rank>", "host", "port>", "member", "silent>", "in>", "out>")
    for member in job.members:
        table.add_row(
            f"{member.rank} of {job.size}",
            member.host,
            str(member.port),
            _state(member.state),
            f"{member.silent_s:.1f} s" if member.state == "attending" else "",
            _traffic(member.up),
            _traffic(member.down),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    """Return an empty table. A column whose name ends in ``>`` holds numbers."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    return table


def _state(state: str) -> Text:
    return Text(state, style=_STATE_STYLE.get(state, ""))


def _traffic(traffic: Any) -> str:
    return f"{traffic.packets:,} ({_bytes(traffic.bytes)})" if traffic.packets else "0"


def _bytes(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
