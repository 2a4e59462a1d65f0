# SPDX-License-Identifier: Apache-2.0
"""The ctypes declarations of the host agent's C say what its sources say."""

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

import weir.host_agent.transport
from weir.host_agent.transport import engine
from weir.host_agent.transport.links import _DriveResult
from weir.host_agent.transport.report import Verdict

CSRC = Path(weir.host_agent.transport.__file__).parent / "csrc"
SOURCE = re.sub(
    r"/\*.*?\*/", "", "".join(path.read_text() for path in sorted(CSRC.glob("*.[hc]"))), flags=re.DOTALL
)

SCALARS = {
    "void": None,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "size_t": ctypes.c_size_t,
    **{f"{kind}_t": getattr(ctypes, f"c_{kind}") for kind in ("uint8", "uint16", "uint32", "uint64")},
    **{f"{kind}_t": getattr(ctypes, f"c_{kind}") for kind in ("int8", "int16", "int32", "int64")},
}


def in_c(declaration: str) -> str:
    """Return what a C type is to ctypes, by name: every pointer is one; enums are ints."""
    if "*" in declaration or "[" in declaration:
        return "pointer"
    words = [word for word in declaration.split() if word != "const"]
    return "c_int" if words[0] == "enum" else _name(SCALARS[words[0]])


def bound(kind: Any) -> str:
    pointers = (ctypes.c_void_p, ctypes.c_char_p)
    return "pointer" if kind in pointers or hasattr(kind, "contents") else _name(kind)


def _name(kind: Any) -> str:
    return "None" if kind is None else str(kind.__name__)


def members(structure: str) -> list[tuple[str, str]]:
    """Return (name, type) of the members of a C structure, in order."""
    found = re.search(r"typedef struct \{([^{}]*)\} " + structure + ";", SOURCE)
    assert found is not None
    return [
        (name.strip("* "), kind + array)
        for declaration in found[1].split(";")
        if (parts := re.match(r"\s*((?:const )?\w+ )(.*)", declaration, re.DOTALL))
        for kind in [parts[1] + "*" * ("*" in parts[2])]
        for name, array in re.findall(r"([* \w]+)(\[?)[^,]*", parts[2])
    ]


@pytest.mark.parametrize(
    ("structure", "binding"),
    [
        ("weir_report", engine.Report),
        ("weir_config", engine.Config),
        ("weir_account", engine.LossAccount),
        ("weir_service_class", engine.ServiceClass),
        ("weir_addresses", engine.Addresses),
    ],
)
def test_structures(structure: str, binding: type[ctypes.Structure]) -> None:
    def of(kind: Any) -> str:
        return "pointer" if issubclass(kind, ctypes.Array) else bound(kind)

    declared = [(name, in_c(kind)) for name, kind in members(structure)]
    assert [(name, of(kind)) for name, kind, *_ in binding._fields_] == declared


@pytest.mark.parametrize("function", engine._SIGNATURES)
def test_functions(function: str) -> None:
    declared = re.search(rf"^(?!static)(\w[\w ]*?[ *]+){function}\(([^)]*)\)", SOURCE, re.MULTILINE)
    assert declared is not None
    result, arguments = engine._SIGNATURES[function]
    assert in_c(declared[1]) == bound(result)
    assert [in_c(argument) for argument in declared[2].split(",")] == [bound(one) for one in arguments]


@pytest.mark.parametrize(
    ("enumeration", "binding", "prefix"),
    [("weir_verdict", Verdict, "WEIR_"), ("weir_drive_result", _DriveResult, "WEIR_DRIVE_")],
)
def test_enumerations(enumeration: str, binding: Any, prefix: str) -> None:
    found = re.search(r"enum " + enumeration + r" \{([^{}]*)\}", SOURCE)
    assert found is not None
    names = [name.strip().removeprefix(prefix) for name in found[1].split(",") if name.strip()]
    assert [name for name in names if name != "VERDICTS"] == [member.name for member in binding]
