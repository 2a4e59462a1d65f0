# SPDX-License-Identifier: Apache-2.0
"""Programs changed so that their output depends on their input alone, and can be compared.

On BMv2, what the soft switch is when it is run at one and the same time `NOW_US` without queues: clocks stand
still, queues are empty, and the fields of a header that is not valid are zero, where BMv2 leaves what earlier
packets had there. On both, random() gives its lower bound.
"""

import copy
from typing import Any, Final

NOW_US: Final = 42

_CLOCKS: Final = frozenset(("ingress_global_timestamp", "egress_global_timestamp"))
_QUEUES: Final = frozenset(("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"))
_RANDOM: Final = "modify_field_rng_uniform"


def for_soft(program: Any) -> Any:
    """Return a program's BMv2 JSON as the soft switch gets it: as it is, unless it draws random numbers."""
    program = copy.deepcopy(program)
    for action in program["actions"]:
        for primitive in action["primitives"]:
            if primitive["op"] == _RANDOM:
                destination, low, _ = primitive["parameters"]
                primitive["op"], primitive["parameters"] = "assign", [destination, low]
    return program


def for_bmv2(program: Any) -> Any:
    """Return a program's BMv2 JSON as BMv2 gets it."""
    program = for_soft(program)
    for part in (*program["actions"], *program["parsers"], *program["pipelines"], *program["checksums"]):
        _settle(part)
    for parser in program["parsers"]:
        _clean(parser, program)
    return program


def _clean(parser: Any, program: Any) -> None:
    """Put a state in front that sets every field of every header to zero."""
    if parser["init_state"] is None:
        return
    types = {each["name"]: each["fields"] for each in program["header_types"]}
    zero = {"type": "hexstr", "value": "0x0"}
    fields = [
        [header["name"], name]
        for header in program["headers"]
        if not header["metadata"]
        for name, bits, *_ in types[header["header_type"]]
        if bits != "*"
    ]
    sets = [{"op": "set", "parameters": [{"type": "field", "value": field}, zero]} for field in fields]
    state = {
        "name": "with zeros",
        "id": 1 + max(state["id"] for state in parser["parse_states"]),
        "parser_ops": sets,
        "transitions": [{"type": "default", "value": None, "mask": None, "next_state": parser["init_state"]}],
        "transition_key": [],
    }
    parser["parse_states"].append(state)
    parser["init_state"] = state["name"]


def _settle(node: Any) -> None:
    """Replace reads of clocks and queues."""
    if isinstance(node, list):
        for each in node:
            _settle(each)
        return
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == "parameters" and value:  # the first one is where a result goes
            node[key] = [value[0], *map(_settled, value[1:])]
        else:
            node[key] = _settled(value)
        _settle(node[key])


def _settled(node: Any) -> Any:
    if isinstance(node, dict) and node.get("type") == "field":
        if node["value"][-1] in _CLOCKS:
            return {"type": "hexstr", "value": hex(NOW_US)}
        if node["value"][-1] in _QUEUES:
            return {"type": "hexstr", "value": "0x0"}
    return node


def order_matters(program: Any) -> bool:
    """Return whether frames that are under way at once could meet in BMv2 in another order than here.

    They can when the program has registers (or the like) and sends packets round again, or uses them in
    egress, where BMv2 has several threads.
    """
    if not program.get("register_arrays") and not program.get("meter_arrays"):
        return False
    primitives = {each["op"] for action in program["actions"] for each in action["primitives"]}
    if primitives & {"resubmit", "recirculate"}:
        return True
    [egress] = [pipeline for pipeline in program["pipelines"] if pipeline["name"] == "egress"]
    used = {number for table in egress["tables"] for number in table["action_ids"]}
    return any(
        each["op"].startswith(("register_", "execute_meter"))
        for action in program["actions"]
        if action["id"] in used
        for each in action["primitives"]
    )
