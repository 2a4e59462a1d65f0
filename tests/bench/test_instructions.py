# SPDX-License-Identifier: Apache-2.0
"""Instructions of a packet: how profiles and the generated program are read. Nothing is counted here."""

from softp4.codegen.module import generate
from softp4.program.loader import load_program
from weir.bench.switch.instructions import _PARTS, _functions, _part, read_callgrind
from weir.bench.switch.rate import PROGRAM

PROFILE = """\
version: 1
events: Ir

fl=(1) program.c
fn=(1) process
10 5
+2 7
cfi=(2) lookup.h
cfn=(2) find
calls=3 4
* 1000
fi=(2)
4 20
fe=(1)
-1 2
* 1

fl=(2)
fn=(2)
4 1000
"""


def test_a_line_s_own_cost_is_read_without_that_of_what_it_calls() -> None:
    assert read_callgrind(PROFILE) == {
        ("program.c", 10): 5,
        ("program.c", 12): 7,
        ("lookup.h", 4): 20 + 1000,
        ("program.c", 3): 2 + 1,
    }


def test_every_part_is_found_in_the_generated_program() -> None:
    text = generate(load_program(PROGRAM), False).splitlines()
    found = {_part(function, line) for function, line in zip(_functions(text), text, strict=True)}
    assert found >= {part for part, _ in _PARTS} | {"tables", "conditions of ingress and egress"}
