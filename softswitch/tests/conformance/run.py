# SPDX-License-Identifier: Apache-2.0
"""Run a case on a switch: what STF says is done in order, and per port the right frames must have left."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tests.conformance.cases import Case, Compiled
from tests.conformance.names import Names
from tests.conformance.stf import Add, Command, Expect, Packet, SetDefault, Statement, StfError, parse
from tests.conformance.switches import SWITCHES, Frames, RefusedError, Runner


class Verdict(Enum):
    """How a case ends. Refused: the switch does not take the program or an entry."""

    PASS = "pass"
    FAIL = "fail"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """A verdict with the reason, which is empty for PASS."""

    verdict: Verdict
    reason: str = ""


def run(case: Case, compiled: Compiled, switch: str) -> Outcome:
    """Run a compiled case on one of `SWITCHES`."""
    try:
        statements = list(parse(case.test.read_text()))
        runner = SWITCHES[switch](compiled)
    except StfError as error:
        return Outcome(Verdict.FAIL, f"{case.test.name}: {error}")
    except RefusedError as error:
        return Outcome(Verdict.REFUSED, str(error))
    except RuntimeError as error:
        return Outcome(Verdict.FAIL, str(error))
    try:
        left = _play(statements, Names(compiled.json()), runner)
    except RefusedError as error:
        return Outcome(Verdict.REFUSED, str(error))
    except (RuntimeError, StfError) as error:
        return Outcome(Verdict.FAIL, str(error))
    finally:
        runner.close()
    wrong = _wrong(statements, left)
    return Outcome(Verdict.FAIL, wrong) if wrong else Outcome(Verdict.PASS)


def _play(statements: Sequence[Statement], names: Names, runner: Runner) -> Frames:
    """Return everything that left."""
    left: Frames = []
    replication = _Replication(runner)
    for statement in statements:
        match statement:
            case Packet(port, frame):
                replication.install()
                left += runner.send(port, frame)
            case Add():
                runner.insert(*names.entry(statement))
            case SetDefault():
                runner.set_default(*names.default(statement))
            case Command(name, args):
                replication.do(name, args)
    return left


class _Replication:
    """Groups and sessions as BMv2's command line makes them: bit by bit."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._nodes: list[list[tuple[int, int]]] = []
        self._groups: dict[int, list[tuple[int, int]]] = {}
        self._waiting: set[int] = set()

    def do(self, name: str, args: Sequence[int]) -> None:
        match name, list(args):
            case "mc_mgrp_create", [group]:
                self._groups[group] = []
            case "mc_node_create", [rid, *ports]:
                self._nodes.append([(port, rid) for port in ports])
            case "mc_node_associate", [group, node]:
                self._groups[group] += self._nodes[node]
                self._waiting.add(group)
            case "mirroring_add", [session, port]:
                self._runner.set_session(session, [(port, 0)])
            case "mirroring_add_mc", [session, group]:
                self._runner.set_session(session, self._groups[group])
            case _:
                raise StfError(f"{name} {args}")

    def install(self) -> None:
        """What has to be there when a frame comes."""
        for group in sorted(self._waiting):
            self._runner.set_group(group, self._groups[group])
        self._waiting.clear()


def _wrong(statements: Sequence[Statement], left: Frames) -> str:
    """Return what is not as expected; empty when all is.

    As in p4c's runner, only ports that occur in the file are looked at.
    """
    expected: dict[int, list[str | None]] = {}
    for statement in statements:
        if isinstance(statement, Packet):
            expected.setdefault(statement.port, [])
        elif isinstance(statement, Expect):
            expected.setdefault(statement.port, []).append(statement.pattern)
    for port, patterns in sorted(expected.items()):
        frames = [frame.hex() for where, frame in left if where == port]
        if len(frames) != len(patterns):
            return f"port {port}: {len(frames)} frames left instead of {len(patterns)}"
        for number, (frame, pattern) in enumerate(zip(frames, patterns, strict=True), 1):
            if pattern is not None and not fits(frame, pattern):
                return f"port {port}, frame {number}: {frame} instead of {pattern}"
    return ""


def fits(frame: str, pattern: str) -> bool:
    """Return whether a frame in hexadecimal starts as a pattern wants, or is so long if the pattern ends in
    `$`.
    """
    wanted = pattern.removesuffix("$")
    if len(frame) < len(wanted) or (pattern.endswith("$") and len(frame) > len(wanted)):
        return False
    return all(want in ("*", got) for want, got in zip(wanted, frame, strict=False))
