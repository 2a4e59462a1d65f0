# SPDX-License-Identifier: Apache-2.0
"""The ctypes declarations of our C, of every library, say what its sources say.

Functions are compared with their C declarations; the layout of structures is what the compiler makes of them.
"""

import ctypes
import functools
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import weir
from softp4.bench import lookups
from softp4.dataplane import loop_bindings
from softp4.native import ring
from softp4.native.build import DIALECT, Signatures, compiler
from softp4.p4rt import updates
from softp4.runtime import bindings, queueing
from tests.dataplane import test_ports
from tests.state import test_tables_under_load
from weir.bench.switch import native as bench
from weir.host_agent.collectives import bindings as collectives
from weir.host_agent.compression import bindings as compression
from weir.host_agent.flows import native as flows
from weir.host_agent.flows.verdict import FlowVerdict
from weir.host_agent.transport import bindings as transport
from weir.host_agent.transport.links import _DriveResult
from weir.host_agent.transport.report import Verdict
from weir.simulator import fabric

ROOT: Final = Path(weir.__file__).resolve().parents[1]


@dataclass(frozen=True)
class Library:
    """A native library.

    Attributes:
        folders: where its sources are, the folder of its own ones first.
        signatures: its functions, as Python has them.
        structures: its structures by their C names, as Python has them.
        heads: those of which Python knows the first members only.
    """

    folders: tuple[str, ...]
    signatures: Signatures
    structures: Mapping[str, type[ctypes.Structure]]
    heads: frozenset[str] = frozenset()


_TRANSPORT, _COLLECTIVES = "host_agent/transport/csrc", "host_agent/collectives/csrc"
_RUNTIME, _NATIVE = "softswitch/softp4/runtime", "softswitch/softp4/native"
LIBRARIES: Final = {
    "transport": Library(
        (_TRANSPORT, _NATIVE),
        transport.SIGNATURES,
        {
            "weir_report": transport.Report,
            "weir_config": transport.Config,
            "weir_account": transport.LossAccount,
            "weir_service_class": transport.ServiceClass,
            "weir_addresses": transport.Addresses,
            "weir_floats": transport.Floats,
        },
    ),
    "flows": Library(
        ("host_agent/flows/csrc", _TRANSPORT),
        flows.SIGNATURES,
        {
            "weir_flow_config": flows.Config,
            "weir_flow_tensor": flows.Tensor,
            "weir_flow_sender_counts": flows.SenderCounts,
            "weir_flow_receiver_counts": flows.ReceiverCounts,
            "weir_flow_settled": flows.Settled,
            "weir_flow_delivered": flows.Delivered,
        },
    ),
    "collectives": Library((_COLLECTIVES, _TRANSPORT), collectives.SIGNATURES, {}),
    "compression": Library(
        ("host_agent/compression/csrc", _COLLECTIVES),
        compression.SIGNATURES,
        {"weir_regions": compression.Regions},
    ),
    "ring": Library((_NATIVE,), ring.SIGNATURES, {}),
    "softswitch": Library(
        (_RUNTIME,),
        bindings.SIGNATURES,
        {
            "sw_queueing": queueing.Limits,
            "sw_queue_stats": queueing.QueueCounts._type_,
            "sw_ops": test_ports._Operations,
        },
        heads=frozenset({"sw_ops"}),
    ),
    "switch-loop": Library(
        ("softswitch/softp4/dataplane/csrc", _RUNTIME, _NATIVE),
        loop_bindings.SIGNATURES,
        {"port_stats": loop_bindings.Statistics},
    ),
    "p4runtime": Library(
        ("softswitch/softp4/p4rt/csrc",),
        updates.SIGNATURES,
        {
            "p4rt_piece": updates.Piece,
            "p4rt_field": updates.Field,
            "p4rt_action": updates.Action,
            "p4rt_table": updates.Table,
            "p4rt_tables": updates.Tables,
        },
    ),
    "fabric": Library(
        ("simulator/csrc", _RUNTIME),
        fabric.SIGNATURES,
        {"fabric": fabric._State, "output": fabric._Output},
        heads=frozenset({"fabric"}),
    ),
    "bench": Library(("bench/switch/csrc", _RUNTIME, _TRANSPORT, _NATIVE), bench.SIGNATURES, {}),
    "switch-bench": Library(("softswitch/softp4/bench/csrc", _RUNTIME, _NATIVE), lookups.SIGNATURES, {}),
    "flood": Library(
        ("softswitch/tests", _NATIVE),
        test_tables_under_load.SIGNATURES,
        {"flood_result": test_tables_under_load.Result},
    ),
}

SCALARS: Final = {
    "void": None,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    **{f"{kind}_t": getattr(ctypes, f"c_{kind}") for kind in ("uint8", "uint16", "uint32", "uint64")},
    **{f"{kind}_t": getattr(ctypes, f"c_{kind}") for kind in ("int8", "int16", "int32", "int64")},
}
BYTES: Final = ("char", "uint8_t", "void")
WORDS: Final = {"sw_cell", "sw_stats", "sw_crc_parameters", "sw_meter_config"}  # of uint64_t only
PAIRS: Final = {"sw_replica"}  # of uint32_t only


@functools.cache
def source(library: str) -> str:
    """Return all C of a library, without comments."""
    files = [
        path
        for folder in LIBRARIES[library].folders
        for path in sorted((ROOT / folder).glob("*.[hc]"))
        if folder == LIBRARIES[library].folders[0] or path.suffix == ".h" or path.name == "ring_api.c"
    ]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def agree(declaration: str, kind: Any, library: Library) -> bool:
    """Return whether a C parameter, or a function's result, is what ctypes is told it is."""
    base = [word for word in re.findall(r"\w+", declaration) if word not in ("const", "restrict", "volatile")]
    depth = declaration.count("*") + declaration.count("[")
    if base[0] == "enum":
        return depth == 0 and kind is ctypes.c_int
    if base[0] == "sw_emit":
        return depth == 0 and issubclass(kind, ctypes._CFuncPtr)  # type: ignore[attr-defined]
    if depth == 0:
        return base[0] in SCALARS and kind is SCALARS[base[0]]
    if kind is ctypes.c_void_p:
        return True
    if kind is ctypes.c_char_p:
        return depth == 1 and base[0] in BYTES
    pointed = kind._type_
    if depth > 1:
        return pointed is ctypes.c_void_p or agree(declaration.replace("*", "", 1), pointed, library)
    if issubclass(pointed, ctypes.Structure):
        owners = [*library.structures.items(), ("sw_queueing", queueing.Limits)]
        return (base[0], pointed) in owners
    return (
        pointed is SCALARS.get(base[0])
        or (base[0] in WORDS and pointed is ctypes.c_uint64)
        or (base[0] in PAIRS and pointed is ctypes.c_uint32)
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [(name, function) for name, each in LIBRARIES.items() for function in each.signatures],
)
def test_functions(name: str, function: str) -> None:
    library = LIBRARIES[name]
    pattern = rf"^(?!static)(\w[\w ]*?[ *]+){function}\(([^)]*)\)\s*[;{{]"
    declared = re.search(pattern, source(name), re.MULTILINE)
    assert declared is not None
    result, arguments = library.signatures[function]
    assert agree(declared[1], result, library), declared[1]
    written = [] if declared[2].strip() in ("", "void") else declared[2].split(",")
    assert len(written) == len(arguments)
    for text, kind in zip(written, arguments, strict=True):
        assert agree(text, kind, library), text


@pytest.mark.parametrize(
    ("name", "structure"),
    [(name, each) for name, library in LIBRARIES.items() for each in library.structures],
)
def test_structures(name: str, structure: str, tmp_path: Path) -> None:
    library = LIBRARIES[name]
    binding = library.structures[structure]
    equal = {} if structure in library.heads else {f"sizeof({structure})": ctypes.sizeof(binding)}
    for field, *_ in binding._fields_:
        equal[f"offsetof({structure}, {field})"] = getattr(binding, field).offset
        equal[f"sizeof((({structure} *)0)->{field})"] = getattr(binding, field).size
    checks = [f'_Static_assert({text} == {value}, "{text}");\n' for text, value in equal.items()]
    home = next(
        path.name
        for folder in library.folders
        for path in sorted((ROOT / folder).glob("*.[hc]"), key=lambda path: path.suffix, reverse=True)
        if re.search(rf"^}} {structure};|^struct {structure} {{", path.read_text(), re.MULTILINE)
    )
    unit = tmp_path / "check.c"
    unit.write_text(f'#include <stddef.h>\n#include "{home}"\n' + "".join(checks))
    include = [f"-I{ROOT / folder}" for folder in library.folders]
    command = [*compiler(), *DIALECT, *include, "-c", str(unit), "-o", str(tmp_path / "check.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("structure", sorted(WORDS | PAIRS))
def test_structures_passed_as_arrays_of_numbers(structure: str) -> None:
    found = re.search(r"typedef struct \{([^{}]*)\} " + structure + ";", source("softswitch"))
    assert found is not None
    kinds = {declaration.split()[0] for declaration in found[1].split(";") if declaration.strip()}
    assert kinds == {"uint64_t" if structure in WORDS else "uint32_t"}


@pytest.mark.parametrize(
    ("name", "enumeration", "binding", "prefix", "more"),
    [
        ("transport", "enum weir_verdict {}", Verdict, "WEIR_", {"VERDICTS"}),
        ("transport", "enum weir_drive_result {}", _DriveResult, "WEIR_DRIVE_", set()),
        ("flows", "enum weir_flow_verdict {}", FlowVerdict, "FLOW_", {"VERDICTS"}),
        ("fabric", "typedef enum {} target;", fabric.Target, "", {"NOWHERE"}),
    ],
)
def test_enumerations(name: str, enumeration: str, binding: Any, prefix: str, more: set[str]) -> None:
    pattern = re.escape(enumeration).replace(r"\{\}", r"\{([^{}]*)\}")
    found = re.search(pattern, source(name))
    assert found is not None
    names = [each.strip().removeprefix(prefix) for each in found[1].split(",") if each.strip()]
    values = {each: value for value, each in enumerate(names) if each not in more}
    assert values == {member.name: member.value for member in binding}
