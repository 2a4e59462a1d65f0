# SPDX-License-Identifier: Apache-2.0
"""``softp4 ctl``: looks at a running switch and changes it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from softp4.control.address import ControlAddressError, running
from softp4.control.cli_program import assertions, crc_app
from softp4.control.client import CallFailedError, call
from softp4.control.target import Target, fail, show
from softp4.dataplane.port_spec import KINDS, OPTIONS

app = typer.Typer(no_args_is_help=True, help="Look at a running switch and change it.")
ports_app = typer.Typer(no_args_is_help=True, help="List, add, remove, bring up or down ports.")
queueing_app = typer.Typer(no_args_is_help=True, help="Rates and queue depths of ports.")
trace_app = typer.Typer(no_args_is_help=True, help="Print the path of frames.")
capture_app = typer.Typer(no_args_is_help=True, help="Write the frames of ports to pcapng files.")
app.add_typer(ports_app, name="ports")
app.add_typer(queueing_app, name="queueing")
app.add_typer(capture_app, name="capture")
app.add_typer(trace_app, name="trace")
app.add_typer(crc_app, name="crc")
app.command()(assertions)

Port = Annotated[int, typer.Argument(min=0, help="Port number.", show_default=False)]


@app.callback()
def _ctl(
    context: typer.Context,
    socket: Annotated[
        Path | None, typer.Option(metavar="SOCKET", help="The switch's --control.", show_default=False)
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(help="The switch's process id; not needed while only one runs.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Look at a running switch and change it: ports, limits, captures, CRCs."""
    context.obj = Target(socket, pid, as_json)


@app.command("list")
def list_switches(context: typer.Context) -> None:
    """List the switches that run."""
    found = []
    try:
        sockets = running()
    except ControlAddressError as error:
        fail(str(error))
    for pid, path in sockets.items():
        try:
            found.append(call(path, "info") | {"ports": len(call(path, "ports"))})
        except CallFailedError as error:
            found.append({"pid": pid, "error": str(error)})
    rows = (
        (info["pid"], info.get("device_id"), info.get("grpc"), _program(info), info.get("ports"))
        for info in found
    )
    show(context, found, ("pid", "device id", "P4Runtime", "program", "ports"), rows)


@app.command()
def info(context: typer.Context) -> None:
    """Say what a switch is and which program it runs."""
    found = context.obj.call("info")
    program = found["program"] or {}
    rows: list[tuple[str, Any]] = [
        ("process", found["pid"]),
        ("running for", f"{found['seconds']:,.0f} s"),
        ("device id", found["device_id"]),
        ("P4Runtime", found["grpc"]),
        ("CPU port", found["cpu_port"]),
        ("program", _program(found)),
        ("SHA-256", program.get("sha256")),
        ("threads", _threads(program.get("threads"))),
        *((kind, ", ".join(program.get(kind, ()))) for kind in ("tables", "counters", "registers")),
        ("frames to ports that are not there", f"{found['unknown_port_drops']:,}"),
    ]
    show(context, found, ("", ""), rows)


@ports_app.command("list")
def list_ports(context: typer.Context) -> None:
    """List ports: what they are, whether they are up, their limits."""
    found = context.obj.call("ports")
    rows = ((p["port"], "up" if p["up"] else "down", p["attached"], _limits(p["queueing"])) for p in found)
    show(context, found, ("port", "state", "attached to", "limits"), rows)


@ports_app.command()
def stats(
    context: typer.Context,
    port: Annotated[int | None, typer.Argument(min=0, help="Only of this one.", show_default=False)] = None,
) -> None:
    """Packets, bytes and drops of every port.

    Dropped in: the port was down, its ring was full, or there is no program. Too long: the frame had more
    than 4216 bytes. Dropped out: the queue was full or the port down. Batches: GSO/GRO batches of several
    packets.
    """
    found = [p for p in context.obj.call("ports") if port is None or p["port"] == port]
    if port is not None and not found:
        fail(f"there is no such port: {port}")
    names = (
        "rx_packets",
        "rx_bytes",
        "rx_drops",
        "rx_oversize",
        "rx_batches",
        "tx_packets",
        "tx_bytes",
        "tx_drops",
        "tx_batches",
    )
    rows = ((p["port"], *(f"{p['statistics'][name]:,}" for name in names)) for p in found)
    heads = (
        "port",
        "packets in",
        "bytes in",
        "dropped in",
        "too long",
        "batches in",
        "packets out",
        "bytes out",
        "dropped out",
        "batches out",
    )
    show(context, found, heads, rows)


@ports_app.command()
def add(
    context: typer.Context,
    spec: Annotated[str, typer.Argument(metavar="N=PORT", help=f"As after --port: {KINDS}; then {OPTIONS}.")],
) -> None:
    """Open a port.

    Paths and interfaces are the switch's: a relative path starts in its working directory.
    """
    context.obj.call("port_add", spec=spec)


@ports_app.command()
def remove(context: typer.Context, port: Port) -> None:
    """Close a port; what waits in its queues is sent first."""
    context.obj.call("port_remove", port=port)


@ports_app.command()
def up(context: typer.Context, port: Port) -> None:
    """Let frames through a port again."""
    context.obj.call("port_up", port=port)


@ports_app.command()
def down(context: typer.Context, port: Port) -> None:
    """Drop, and count, what comes in and goes out at a port."""
    context.obj.call("port_down", port=port)


@queueing_app.command("show")
def show_queueing(context: typer.Context, port: Port) -> None:
    """Print a port's limits, and what its queues hold, have sent and have dropped. 7 is served first."""
    found = context.obj.call("queueing", port=port)
    if not context.obj.json:
        typer.echo(f"port {port}: {_limits(found['limits']) or 'no limits'}")
    names = (
        "depth_packets",
        "depth_bytes",
        "packets",
        "bytes",
        "dropped_packets",
        "dropped_bytes",
        "overtaking_packets",
    )
    rows = [
        (priority, *(f"{queue[name]:,}" for name in names))
        for priority, queue in reversed(list(enumerate(found["queues"])))
    ]
    heads = ("priority", "waiting", "bytes", "sent", "bytes", "dropped", "bytes", "overtook")
    show(context, found, heads, rows if found["limits"] else ())


@queueing_app.command("set")
def set_queueing(
    context: typer.Context,
    port: Port,
    rate: Annotated[
        str | None, typer.Option(help="Bits of frames a second, e.g. 100mbit.", show_default=False)
    ] = None,
    pps: Annotated[int | None, typer.Option(help="Packets a second.", show_default=False)] = None,
    burst: Annotated[
        int | None, typer.Option(help="Bytes that may leave back to back.", show_default=False)
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Packets that each queue holds; 64 if not given.", show_default=False)
    ] = None,
    depth_bytes: Annotated[
        int | None, typer.Option(help="Bytes that each queue holds.", show_default=False)
    ] = None,
) -> None:
    """Limit a port, both ways. What is not given is not limited; what waits stays."""
    limits = {"rate": rate, "pps": pps, "burst": burst, "depth": depth, "depth_bytes": depth_bytes}
    context.obj.call("queueing_set", port=port, **limits)


@queueing_app.command("clear")
def clear_queueing(context: typer.Context, port: Port) -> None:
    """Lift a port's limits; what waits leaves at once."""
    context.obj.call("queueing_clear", port=port)


@capture_app.command("start")
def start_capture(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="pcapng file; overwritten.", show_default=False)],
    port: Annotated[
        list[int] | None, typer.Option(min=0, help="Only of this port; repeatable.", show_default=False)
    ] = None,
    direction: Annotated[str, typer.Option(help="in, out or both, as the switch sees it.")] = "both",
) -> None:
    """Start to capture. Several captures can go on at a time, each into a file of its own."""
    context.obj.call("capture_start", file=str(file.absolute()), ports=port or None, directions=direction)


@capture_app.command("stop")
def stop_capture(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="As given to start.", show_default=False)],
) -> None:
    """End a capture; the file is complete then."""
    context.obj.call("capture_stop", file=str(file.absolute()))


@capture_app.command("list")
def list_captures(context: typer.Context) -> None:
    """List what is being captured."""
    found = context.obj.call("captures")
    rows = (
        (
            c["file"],
            "all" if c["ports"] is None else ", ".join(map(str, c["ports"])),
            c["directions"],
            c["error"],
        )
        for c in found
    )
    show(context, found, ("file", "ports", "directions", "stopped by"), rows)


@trace_app.command("start")
def start_trace(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="Where to; overwritten. The switch's stderr if not given.", show_default=False),
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only frames that arrive on this port; repeatable.", show_default=False),
    ] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Number of frames.", show_default=False)] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every statement of actions, however long they are.")
    ] = False,
) -> None:
    """Start to trace. An earlier trace ends."""
    path = None if file is None else str(file.absolute())
    context.obj.call("trace_start", file=path, ports=port or None, frames=frames, full=full)


@trace_app.command("stop")
def stop_trace(context: typer.Context) -> None:
    """End the trace."""
    context.obj.call("trace_stop")


def _program(found: dict[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    program = found["program"]
    return "none yet" if program is None else f"{program['sha256'][:12]}, from {program['from']}"


def _threads(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["shared_by"] is not None:
        packets = ", ".join(f"{each:,}" for each in found["packets"])
        return f"{found['count']} share frames by {found['shared_by']}; packets of each: {packets}"
    if found["count"] == 1:
        return "1"
    return f"1 of {found['count']}: {'; '.join(found['why_not'])}"


def _limits(limits: dict[str, int | None] | None) -> str:
    if limits is None:
        return ""
    units = {"rate": "rate {:,} bit/s", "pps": "{:,} packets/s", "burst": "burst {:,} bytes"}
    units |= {"depth": "depth {:,} packets", "depth_bytes": "depth {:,} bytes"}
    return ", ".join(units[name].format(value) for name, value in limits.items() if value)
