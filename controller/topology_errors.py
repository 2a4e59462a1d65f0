# SPDX-License-Identifier: Apache-2.0
"""Sentences about a topology that is wrong: the place, what is allowed there, and an example."""

import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_EXAMPLES: Final = {
    "switches": 'switches: [{name: s1, grpc: "127.0.0.1:9559", target: soft}]',
    "hosts": 'hosts: [{name: h1, switch: s1, port: 1, mac: "02:00:00:00:00:01", ip: 10.0.0.1}]',
    "links": 'links: [{ends: ["leaf1:5", "spine1:1"]}]',
    "qos": "qos: {spray: round_robin}",
    "mtu": "mtu: 1500",
    "name": "name: s1",
    "device_id": "device_id: 1",
    "grpc": 'grpc: "127.0.0.1:9559"',
    "thrift": 'thrift: "127.0.0.1:9090"',
    "program": "program: weir_v1model",
    "target": "target: soft",
    "lanes": "lanes: 32",
    "aggregation": 'aggregation: {mac: "02:00:00:00:00:fe", ip: 10.0.0.254}',
    "tls": "tls: {ca: ca.pem}",
    "ca": "ca: ca.pem",
    "cert": "cert: controller.pem",
    "key": "key: controller.key",
    "subnet": "subnet: 10.0.1.0/24",
    "ports": "ports: {speed: 100G}",
    "switch": "switch: s1",
    "port": "port: 1",
    "mac": 'mac: "02:00:00:00:00:01"',
    "ip": "ip: 10.0.0.1",
    "shm": "shm: /dev/shm/weir-s1",
    "claimed": "claimed: {secret: FILE} of a switch, claimed: 9701 of a host",
    "secret": "secret: secret.txt",
    "host": "host: 192.168.7.1",
    "ends": 'ends: ["leaf1:5", "spine1:1"]',
    "priorities": "priorities: true",
    "classes": "classes: {AF13: {trim_at: 12}}",
    "losses": "losses: [{switch: leaf1, port: 5, probability: 0.01}]",
    "queues": "queues: [{switch: leaf1, port: 5, rate_pps: 2000}]",
    "queue": "queue: 1",
    "trim_at": "trim_at: 12",
    "mark_at": "mark_at: 12",
    "drop_at": "drop_at: never",
    "probability": "probability: 0.01",
    "direction": "direction: egress",
    "dscp": "dscp: AF11",
    "rate_pps": "rate_pps: 2000",
    "depth": "depth: 64",
    "speed": "speed: 100G",
    "fec": "fec: none",
    "autoneg": "autoneg: default",
    "spray": "spray: round_robin",
}
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "string": "text: put it in quotes if it looks like a number",
    "threshold": "a number of packets from 0 to 65534, or never",
    "code": "a DSCP: 0 to 63, or its name, AF11 to AF43 or CS0 to CS7",
    "bool": "true or false",
    "tuple": 'a list: entries in [...], or lines that begin with "- "',
    "dict": "a mapping: {name: value}, or a line for each name",
    "model": "a mapping: {name: value}, or a line for each name",
    "path": "the path of a file",
}
_LIMITS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_KEY: Final = "[key]"
_THRESHOLDS: Final = (
    "constrained-int",
    "int",
    "literal['never']",
)  # what pydantic calls the parts of a Threshold
_LONGEST: Final = 60


def sentences(error: ValidationError, model: type[BaseModel], data: object) -> Iterator[str]:
    """Yield what is wrong, a line each.

    Args:
        error: from validating ``data``.
        model: of the whole file.
        data: what the file holds.
    """
    said = set()
    for problem in error.errors():
        if problem["type"] == "too_short" and problem["input"]:
            continue  # an entry that is wrong does not count, and has its own line
        place, at = _place(problem["loc"], data), _setting(problem["loc"])
        what = _what(problem, model, at)
        for part in [what] if problem["loc"] else what.split("; "):  # the whole file's are in one
            line = f"{place + ': ' if place else ''}{part}"
            if line not in said:
                said.add(line)
                yield line


def _what(problem: ErrorDetails, model: type[BaseModel], at: str) -> str:
    """Return what is wrong in one place. ``at``: the setting's name."""
    kind, given, context = problem["type"], _shown(problem["input"]), problem.get("ctx", {})
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if problem["input"] is None and kind != "missing":
        return f"nothing is written there: leave the line out, or fill it in{_example(at)}"
    if problem["loc"][-1] in _THRESHOLDS:
        return f"{given} is not {_KINDS['threshold']}{_example(at)}"
    if problem["loc"][-1] == _KEY:
        return f"{given} is not {_KINDS['code']}{_example('classes')}"
    if kind == "missing":
        return f"is missing{_example(at)}"
    if kind == "extra_forbidden":
        return _unknown(at, _fields(model, problem["loc"][:-1]))
    if kind == "literal_error":
        return f"{given} is not one of {context['expected'].replace(chr(39), '')}{_example(at)}"
    if kind == "string_pattern_mismatch":
        return (
            f"{given} is not a name: a name begins with a letter or a digit, continues with letters, digits, "
            f"'_', '.' and '-', and has at most 63 characters{_example(at)}"
        )
    if kind == "too_short":
        return f"there must be at least one{_example(at)}"
    if kind == "too_long":
        return f"{context['actual_length']} entries are more than {context['max_length']}{_example(at)}"
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"{given} is out of range: it must be {words} {context[name]}{_example(at)}"
    wanted = _KINDS.get(kind.partition("_")[0])
    return (
        f"{given} is not {wanted}{_example(at)}" if wanted else f"{given} cannot be used here{_example(at)}"
    )


def _place(loc: Sequence[int | str], data: object) -> str:
    """Return a place as the file has it, after the name of what is there: "h1, hosts[0].port"."""
    text, name = "", ""
    for part in loc:
        if part in (_KEY, *_THRESHOLDS):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
        data = _step(data, part)
        if isinstance(data, dict) and isinstance(data.get("name"), str):
            name = f"{data['name'][:_LONGEST]}, "
    return name + text.lstrip(".")


def _setting(loc: Sequence[int | str]) -> str:
    """Return the name of the setting in a place."""
    names = [part for part in loc if isinstance(part, str) and part not in (_KEY, *_THRESHOLDS)]
    return names[-1] if names else ""


def _step(data: object, part: int | str) -> object:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return data[part]
    return None


def _fields(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Return the names of the settings that there are in a place."""
    for part in loc:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            model = next(_models(field.annotation), model)
    return list(model.model_fields)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _unknown(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    return (
        f"there is no such setting; did you mean {close[0]!r}{_example(close[0])}"
        if close
        else f"there is no such setting here: there are {', '.join(known)}"
    )


def _example(name: str) -> str:
    return f", for example  {_EXAMPLES[name]}" if name in _EXAMPLES else ""


def _shown(value: object) -> str:
    """Return a value as a topology file has it."""
    if value is None:
        return "nothing"
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    except (
        ValueError,
        RecursionError,
        TypeError,
    ):  # a list of YAML can hold itself
        text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
