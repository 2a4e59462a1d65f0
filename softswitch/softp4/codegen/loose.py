# SPDX-License-Identifier: Apache-2.0
"""Loose registers: those whose accesses have no order that a program could rely on.

Egress writes them, ingress accesses them too, and no action reads and writes, or writes twice. BMv2, the
reference, runs the pipelines on threads of their own and holds nothing together but what one action does. So
threads of the soft switch share such a register as it is: each access is one atomic load or store.
"""

from softp4.codegen.usage import inputs, pipeline_actions, walk
from softp4.program.ir import RegisterRead, RegisterRef, RegisterWrite
from softp4.program.types import Action, Program


def loose_registers(program: Program) -> frozenset[str]:
    """Return the names of the loose registers of a program."""
    used: dict[str, set[str]] = {}
    written: dict[str, set[str]] = {}
    together: set[str] = set()
    for pipeline in (program.ingress, program.egress):
        for action in pipeline_actions(program, pipeline):
            reads, writes = _accesses(action)
            together |= {name for name in writes if name in reads or writes.count(name) > 1}
            for name in (*reads, *writes):
                used.setdefault(name, set()).add(pipeline.name)
            for name in writes:
                written.setdefault(name, set()).add(pipeline.name)
    return frozenset(
        name
        for name, places in written.items()
        if program.egress.name in places
        and program.ingress.name in used[name]
        and name not in together
        and program.registers[name].bits <= 64
    )


def _accesses(action: Action) -> tuple[set[str], list[str]]:
    """Return the registers that an action reads, and those that it writes, once for each time."""
    nodes = (node for each in action.body for expr in inputs(each) for node in walk(expr))
    reads = {node.register for node in nodes if isinstance(node, RegisterRef)}
    reads |= {each.register for each in action.body if isinstance(each, RegisterRead)}
    return reads, [each.register for each in action.body if isinstance(each, RegisterWrite)]
