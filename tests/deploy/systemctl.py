# SPDX-License-Identifier: Apache-2.0
"""A stand-in for systemctl where systemd is not: ``systemctl enable --now UNIT…``, ``start UNIT…``.

It reads what the units of this repository use: EnvironmentFile, Environment, ExecStart with ``$WORDS``,
``${ONE_WORD}`` and ``%i``, Restart, and the folders that systemd makes. Output goes to /run/journal/UNIT,
the process id to /run/journal/UNIT.pid, which a restart changes.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
JOURNAL = Path("/run/journal")
FOLDERS = {
    "StateDirectory": Path("/var/lib"),
    "CacheDirectory": Path("/var/cache"),
    "RuntimeDirectory": Path("/run"),
}


def settings(unit: str) -> dict[str, list[str]]:
    """Return what the [Service] section of a unit says."""
    template, at, instance = unit.partition("@")
    text = (UNITS / f"{template}{at}.service").read_text().split("[Service]")[1].split("[Install]")[0]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text.replace("%i", instance), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def environment(service: dict[str, list[str]]) -> dict[str, str]:
    """Return what the service's processes are told, which is no more than the files say."""
    lines = [*service.get("Environment", ())]
    for file in service.get("EnvironmentFile", ()):
        lines += Path(file).read_text().splitlines()
    named = dict(line.split("=", 1) for line in lines)
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **named}


def words(line: str, known: dict[str, str]) -> list[str]:
    """Return the words of a command line: ``$NAME`` alone is as many as its value has, ``${NAME}`` is one."""
    found = []
    for word in shlex.split(line):
        if re.fullmatch(r"\$\w+", word):
            found += shlex.split(known[word[1:]])
        else:
            found.append(re.sub(r"\$\{(\w+)\}", lambda name: known[name[1]], word))
    return found


def serve(unit: str) -> None:
    """Run a service, again if its unit says so."""
    service = settings(unit)
    known = environment(service)
    for name, root in FOLDERS.items():
        for folder in service.get(name, ()):
            (root / folder).mkdir(parents=True, exist_ok=True)
    command = words(service["ExecStart"][0], known)
    with (JOURNAL / unit).open("ab") as log:
        while True:
            process = subprocess.Popen(command, env=known, cwd="/", stdout=log, stderr=log)
            (JOURNAL / f"{unit}.pid").write_text(str(process.pid))
            status = process.wait()
            (JOURNAL / f"{unit}.status").write_text(str(status))
            if service.get("Restart") != ["always"]:
                return
            time.sleep(float(service["RestartSec"][0]))


def main() -> None:
    """Start the services that are named, each with a process that watches it."""
    verb, *units = [word for word in sys.argv[1:] if word != "--now"]
    assert verb in ("enable", "start"), verb
    JOURNAL.mkdir(exist_ok=True)
    for unit in units:
        settings(unit)
        if os.fork() == 0:
            os.setsid()
            for own in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), own)
            serve(unit)
            os._exit(0)


if __name__ == "__main__":
    main()
