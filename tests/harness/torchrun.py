# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``torchrun`` whose ranks are forked from a process that has torch imported.

torchrun and each of its ranks import torch, which takes seconds of processor time.
"""

import argparse
import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client, Listener
from pathlib import Path

from tests.harness.forked import run_ranks

_COMMAND = """#!{python} -S
import os, sys
from multiprocessing.connection import Client
with Client({address!r}) as launcher:
    launcher.send((sys.argv[1:], os.getcwd(), dict(os.environ)))
    status, said = launcher.recv()
sys.stdout.write(said)
sys.exit(status)
"""


@contextlib.contextmanager
def stand_in() -> Iterator[Path]:
    """Yield a folder with a command ``torchrun``, which works until the end."""
    with tempfile.TemporaryDirectory() as made, Listener(f"{made}/launcher", "AF_UNIX") as listener:
        folder, address = Path(made), str(listener.address)
        command = folder / "torchrun"
        command.write_text(_COMMAND.format(python=sys.executable, address=address))
        command.chmod(0o755)
        launcher = threading.Thread(target=_serve, args=(listener,))
        launcher.start()
        try:
            yield folder
        finally:
            with Client(address) as last:
                last.send(None)
            launcher.join()


def _serve(listener: Listener) -> None:
    while True:
        with listener.accept() as caller:
            request = caller.recv()
            if request is None:
                return
            with contextlib.suppress(BrokenPipeError):  # it was killed
                caller.send(_launch(*request))


def _launch(words: Sequence[str], folder: str, environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit status of a command line, and what it prints."""
    parser = argparse.ArgumentParser("torchrun", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    try:
        options = parser.parse_args(words)
        script = folder / options.script
        return 0, run_ranks(options.nproc_per_node, script, *options.arguments, environment=environment)
    except SystemExit:
        return 2, f"the stand-in for torchrun does not take {words}\n"
    except (argparse.ArgumentError, AssertionError) as error:
        return 1, str(error)
