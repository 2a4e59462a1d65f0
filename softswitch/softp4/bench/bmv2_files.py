# SPDX-License-Identifier: Apache-2.0
"""BMv2 without interfaces: `simple_switch` reads frames from capture files and writes what leaves to others.

A reader thread hands over one frame after the other, as fast as they are taken: all have the same time stamp.
The rate is that of the growth of the output files, from the first frames in them to the last, so that the
start does not count. The entries are put into the program as constant ones, so that no controller is needed.
"""

import json
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from softp4.bench.contenders import free_port
from softp4.bench.tied import tied
from softp4.state.entry import Entry, Exact, Lpm, Match, Range, Ternary

_HEADER: Final = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
_RECORD: Final = 16  # bytes before each frame
_LOOK: Final = 0.005  # seconds between looks at the output files
_QUIET: Final = 2.0  # seconds without growth after which nothing more comes
_TIMEOUT: Final = 120.0


def with_entries(program: Path, table: str, entries: Sequence[Entry]) -> Any:
    """Return BMv2 JSON in which a table has entries; the largest priority is the first."""
    root = json.loads(program.read_text())
    (found,) = (each for p in root["pipelines"] for each in p["tables"] if each["name"] == table)
    widths = [_width(root, *key["target"]) for key in found["key"]]
    actions = {each["id"]: each["name"] for each in root["actions"]}
    ids = {actions[number]: number for number in found["action_ids"]}
    highest = max((entry.priority for entry in entries), default=0)
    found["entries"] = []
    for entry in entries:
        call = {"action_id": ids[entry.action], "action_data": [hex(each) for each in entry.args]}
        key = [_match(match, width) for match, width in zip(entry.key, widths, strict=True)]
        priority = highest - entry.priority + 1
        found["entries"].append({"match_key": key, "action_entry": call, "priority": priority})
    return root


def _width(root: Any, header: str, field: str) -> int:
    """Return the number of hexadecimal digits of a field's bytes."""
    (kind,) = (each["header_type"] for each in root["headers"] if each["name"] == header)
    (fields,) = (each["fields"] for each in root["header_types"] if each["name"] == kind)
    (bits,) = (each[1] for each in fields if each[0] == field)
    return int(bits + 7) // 8 * 2


def _match(match: Match, width: int) -> dict[str, Any]:
    def text(value: int) -> str:
        return f"0x{value:0{width}x}"

    match match:
        case Lpm(value, length):
            return {"match_type": "lpm", "key": text(value), "prefix_length": length}
        case Ternary(value, mask):
            return {"match_type": "ternary", "key": text(value), "mask": text(mask)}
        case Range(low, high):
            return {"match_type": "range", "start": text(low), "end": text(high)}
        case Exact(value):
            return {"match_type": "exact", "key": text(value)}
    raise ValueError(match)


def rate(program: Any, frames: Sequence[bytes], ports: int, folder: Path) -> float:
    """Return the rate of frames that leave, per second; each comes in at port 1 and leaves at one of this
    many ports.

    Raises RuntimeError when BMv2 does not say anything for long.
    """
    (folder / "program.json").write_text(json.dumps(program))
    for port in range(ports):
        _write(folder / f"{port}_in.pcap", frames if port == 1 else ())
        (folder / f"{port}_out.pcap").unlink(missing_ok=True)
    interfaces = [word for port in range(ports) for word in ("-i", f"{port}@{folder / str(port)}")]
    general = ["--use-files", "0", "--thrift-port", str(free_port()), "--device-id", "0"]
    notifications = ["--notifications-addr", f"ipc://{folder / 'notifications'}"] if _notifies() else []
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            tied(["simple_switch", *general, *notifications, *interfaces, str(folder / "program.json")]),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        length = len(frames[0]) + _RECORD
        (first, start), (last, end) = _growth(folder, ports, process)
    finally:
        process.terminate()
        process.wait(10)
    if end <= start:
        raise RuntimeError(f"BMv2 gave no frames: {(folder / 'log').read_text()[-500:]}")
    return (last - first) / length / (end - start)


def _notifies() -> bool:
    """Tell whether this BMv2 sends notifications: one built without nanomsg refuses the option."""
    usage = subprocess.run(["simple_switch", "--help"], check=False, capture_output=True, text=True)
    return "--notifications-addr" in usage.stdout + usage.stderr


def _growth(
    folder: Path, ports: int, process: subprocess.Popen[bytes]
) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return bytes in the output files and the time, when the first were there and when the last came."""
    outputs = [folder / f"{port}_out.pcap" for port in range(ports)]
    began = time.monotonic()
    first = last = (0, began)
    while process.poll() is None and time.monotonic() - began < _TIMEOUT:
        size = sum(each.stat().st_size for each in outputs if each.exists()) - ports * len(_HEADER)
        now = time.monotonic()
        if size > 0 and first[0] == 0:
            first = last = size, now
        elif size > last[0]:
            last = size, now
        elif first[0] and now - last[1] > _QUIET:
            break
        time.sleep(_LOOK)
    return first, last


def _write(path: Path, frames: Sequence[bytes]) -> None:
    with path.open("wb") as file:
        file.write(_HEADER)
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
