# SPDX-License-Identifier: Apache-2.0
"""Memory of a process, as Linux counts it."""

from pathlib import Path


def memory_of(pid: int | str = "self") -> dict[str, int]:
    """Return the bytes that a process holds, by their names in /proc/PID/status.

    VmRSS: resident now. VmHWM: the most that ever was resident. RssFile and RssAnon: what of VmRSS is of
    files, and its own. A page that several processes share counts in each.

    Raises ProcessLookupError when there is no such process.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no such process: {pid}") from error
    lines = (line.split() for line in status.splitlines())
    return {words[0][:-1]: 1024 * int(words[1]) for words in lines if words[-1] == "kB"}
