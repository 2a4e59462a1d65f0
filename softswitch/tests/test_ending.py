# SPDX-License-Identifier: Apache-2.0
"""A switch ends whenever it is asked to, whatever it does at that moment and however often it is asked."""

import contextlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.ports import free_port
from tests.p4rt.p4rt_client import CONTROL, TIMEOUT, Controller

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A signal at every step that the interpreter makes in the flag's functions, the handler's own included.
_INTERRUPTED = """
import faulthandler, signal, sys
from softp4.ending import ended_by_signals

def interrupt(frame, event, argument):
    frame.f_trace_opcodes = True
    signal.raise_signal(signal.SIGINT if frame.f_lasti % 4 else signal.SIGTERM)
    return interrupt

faulthandler.dump_traceback_later(20, exit=True)
with ended_by_signals() as ending:
    sys.settrace(interrupt)
    ending.wait(0.0)
    ending.set()
    ended = ending.is_set() and ending.wait(60.0)
    sys.settrace(None)
sys.exit(0 if ended else "not set")
"""
_SWITCHES = 6
_EARLY_S, _LATE_S = 2.0, 0.3  # until a switch is to end, at most, from its start and when it serves
# By the switch itself; by KeyboardInterrupt, before it has handlers; by Python's own end, or the kernel.
_ENDED = (0, 1, 130, *(-number for number in _SIGNALS))


def test_a_signal_may_come_at_any_step_of_the_flag() -> None:
    command = [sys.executable, "-c", _INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("second", _SIGNALS)
def test_a_second_signal_does_not_interrupt_the_closing(tmp_path: Path, second: signal.Signals) -> None:
    with contextlib.ExitStack() as stack:
        switch = _Disturbed(tmp_path / "switch", stack, "--no-control")
        while not switch.serves():
            time.sleep(0.01)
        switch.process.send_signal(signal.SIGTERM)
        assert switch.process.stdout is not None
        for line in switch.process.stdout:
            if "port 510 (cpu)" in line:  # the last that it says, before it closes everything
                break
        switch.process.send_signal(second)
        said = switch.end()
        assert switch.process.returncode == 0, said


class _Disturbed:
    """A switch that starts or runs, with frames arriving at it, and a controller once it serves."""

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, *arguments: str, **environment: str
    ) -> None:
        folder.mkdir()
        self._ready, self._controller = folder / "ready.json", None
        self._socket = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._socket.bind(("127.0.0.1", 0))
        here, self._there = self._socket.getsockname()[1], free_port(socket.SOCK_DGRAM)
        tunnel = f"1=udp:127.0.0.1:{self._there}:127.0.0.1:{here}"
        options = ("--port", tunnel, "--grpc", f"unix:{folder}/s.sock", "--ready-file", str(self._ready))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "softp4", "run", "--program", str(CONTROL), *options, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment, "PYTHONFAULTHANDLER": "1"},
        )
        self._stack = stack
        stack.callback(self._kill)

    def disturb(self) -> None:
        with contextlib.suppress(ConnectionRefusedError):  # what the frames before found, as nobody listened
            for _ in range(20):
                self._socket.sendto(bytes(60), ("127.0.0.1", self._there))
        if self._controller is None and self.serves():
            self._controller = Controller(json.loads(self._ready.read_text())["grpc"])
            self._stack.callback(self._controller.close)
            self._controller.learn()

    def serves(self) -> bool:
        assert self.process.poll() is None, self.end()
        return self._ready.exists()

    def end(self) -> str:
        """Wait for its end, and return what it said: if it does not end, what its threads do."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.communicate(timeout=TIMEOUT)[0]
        self.process.send_signal(signal.SIGABRT)
        return self.process.communicate(timeout=TIMEOUT)[0]

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("signals", [1, 2])
def test_a_switch_ends_at_any_moment(tmp_path: Path, signals: int) -> None:
    """Moments are drawn: for half of the switches from their start, while two compile."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # of the moments; what the switches do at them, is the machine's
    drawn = random.Random(seed)
    with contextlib.ExitStack() as stack:
        of_own = [{"SOFTP4_CACHE": str(tmp_path / "cache")}] * 2
        waiting = [
            _Disturbed(
                tmp_path / str(number), stack, "--no-control" if number % 2 else "--seed=1", **environment
            )
            for number, environment in enumerate([*of_own, *[{}] * (_SWITCHES - 2)])
        ]
        early = waiting[: _SWITCHES // 2]
        moments = {each: time.monotonic() + drawn.uniform(0.0, _EARLY_S) for each in early}
        ended: list[_Disturbed] = []
        while waiting:
            for each in list(waiting):
                if each not in moments and each.serves():
                    moments[each] = time.monotonic() + drawn.uniform(0.0, _LATE_S)
                if moments.get(each, math.inf) < time.monotonic():
                    for number in drawn.sample(_SIGNALS, signals):
                        each.process.send_signal(number)
                    waiting.remove(each)
                    ended.append(each)
                else:
                    each.disturb()
            time.sleep(0.01)
        for each in ended:
            said = each.end()
            assert each.process.returncode in _ENDED, said
