# SPDX-License-Identifier: Apache-2.0
"""What a room may know of the others, and that no modules import each other in a circle.

Imports inside functions and under ``if TYPE_CHECKING`` count: a reader follows them all the same.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import softp4
import weir

PACKAGES: Final = {package.__name__: Path(package.__file__).resolve().parent for package in (softp4, weir)}

_HOST_AGENT: Final = " ".join(
    f"weir.host_agent.{room}"
    for room in (
        *("transport", "collectives", "compression", "flows", "parameter_server", "placement", "torch"),
        "weights",
    )
)

_PROGRAM_TO_RUNTIME: Final = "softp4.codegen softp4.program softp4.runtime"

# The rooms, each with what it may import besides itself. A module is in the room with the longest name that
# its own begins with; "weir" is the façade: what is in no other room.
ROOMS: Final[Mapping[str, frozenset[str]]] = {
    room: frozenset(allowed.split())
    for room, allowed in {
        "softp4.native": "",
        "weir.p4src": "",
        "weir.wire": "",
        "softp4.protobuf": "",
        "softp4.channels": "",
        "weir.agent_service": "softp4.channels softp4.protobuf weir.wire",
        "softp4.p4runtime": "softp4.channels softp4.protobuf",
        "softp4.errors": "softp4.p4runtime",
        "softp4.failures": "",
        "softp4.program": "",
        "softp4.codegen": "softp4.program",
        "softp4.runtime": "softp4.native softp4.codegen softp4.program",
        "softp4.state": f"softp4.errors {_PROGRAM_TO_RUNTIME}",
        "softp4.tracing": f"softp4.state {_PROGRAM_TO_RUNTIME}",
        "softp4.dataplane": "softp4.native softp4.runtime",
        "softp4.switch": f"softp4.errors softp4.state softp4.tracing {_PROGRAM_TO_RUNTIME}",
        "softp4.p4rt": "softp4.native softp4.p4runtime softp4.protobuf softp4.errors "
        "softp4.program softp4.runtime softp4.state softp4.switch",
        "softp4.device": "softp4.p4runtime softp4.dataplane softp4.errors "
        "softp4.failures softp4.p4rt softp4.program softp4.switch "
        "softp4.tracing",
        "softp4.control": "softp4.native softp4.dataplane softp4.device "
        "softp4.errors softp4.program softp4.runtime softp4.tracing",
        "softp4.bench": "softp4.native softp4.p4runtime softp4.runtime softp4.state softp4.switch",
        "softp4": "softp4.native softp4.control softp4.dataplane "
        "softp4.device softp4.errors softp4.p4rt softp4.program "
        "softp4.runtime softp4.tracing",
        "weir.report": "",
        "weir.controller": "weir.agent_service softp4.channels softp4.native softp4.p4runtime weir.p4src "
        "weir.report softp4.protobuf weir.wire",
        "weir.host_agent": "",
        "weir.host_agent.transport": "softp4.native weir.wire",
        "weir.host_agent.collectives": "weir.host_agent.transport softp4.native weir.wire",
        "weir.host_agent.compression": "weir.host_agent.collectives weir.host_agent.transport softp4.native "
        "softp4.runtime weir.wire",
        "weir.host_agent.flows": "weir.host_agent.transport softp4.native weir.wire",
        "weir.host_agent.placement": "softp4.native",
        "weir.host_agent.parameter_server": "weir.host_agent.collectives weir.host_agent.compression "
        "weir.host_agent.flows weir.host_agent.transport softp4.native weir.wire",
        "weir.host_agent.weights": "weir.host_agent.collectives weir.host_agent.compression "
        "weir.host_agent.transport softp4.native weir.wire",
        "weir.host_agent.torch": "weir.agent_service weir.host_agent.collectives weir.host_agent.compression "
        "weir.host_agent.flows weir.host_agent.parameter_server weir.host_agent.transport "
        "weir.host_agent.weights softp4.native weir.wire",
        "weir.simulator": "weir.controller weir.host_agent.flows weir.host_agent.transport softp4.native "
        "weir.p4src softp4.program softp4.runtime softp4.state "
        "softp4.switch weir.wire",
        # What audits packets shares no code with what makes them.
        "weir.pcap": "weir weir.report weir.wire",
        "weir": f"weir.agent_service softp4.channels weir.controller {_HOST_AGENT} softp4.native "
        "softp4.p4runtime softp4.protobuf softp4 softp4.control softp4.device "
        "softp4.runtime weir.report weir.wire",
        "weir.bench": f"weir weir.report weir.agent_service weir.controller {_HOST_AGENT} "
        "softp4.native softp4.p4runtime "
        "weir.p4src softp4.protobuf weir.simulator softp4 softp4.bench softp4.control "
        "softp4.dataplane softp4.state softp4.switch weir.wire "
        f"{_PROGRAM_TO_RUNTIME}",
    }.items()
}

# Packages that a room, and what is in it, must do without, so that it can be installed, or reasoned about,
# without them.
WITHOUT: Final = {
    "softp4.native": {"grpc", "p4", "pydantic", "torch"},
    "weir.wire": {"grpc", "numpy", "p4", "pydantic", "torch"},
    "weir.agent_service": {"numpy", "p4", "pydantic", "torch", "typer"},
    "softp4": {"numpy", "pydantic", "torch", "weir", "yaml"},
    **{
        f"softp4.{room}": {"google", "grpc", "p4", "pydantic", "typer"}
        for room in ("program", "codegen", "runtime", "state", "dataplane", "tracing", "switch")
    },
    "weir.controller": {"numpy", "torch"},
    "weir.host_agent.transport": {"grpc", "p4", "pydantic", "torch", "typer", "yaml"},
    "weir.host_agent.collectives": {"grpc", "p4", "pydantic", "typer", "yaml"},
    "weir.host_agent.compression": {"grpc", "p4", "typer", "yaml"},
    "weir.host_agent.flows": {"grpc", "p4", "pydantic", "torch", "typer", "yaml"},
    "weir.host_agent.placement": {"grpc", "p4", "pydantic", "torch", "typer", "yaml"},
    "weir.host_agent.weights": {"grpc", "p4", "typer", "yaml"},
    "weir.host_agent.parameter_server": {"grpc", "p4", "torch", "typer", "yaml"},
    "weir.host_agent.torch": {"p4", "p4runtime_sh", "yaml"},
}

# Expressions of any width are written by the module of plain ones, which hands wide operands over, and back.
CIRCLES: Final = {frozenset({"softp4.codegen.expressions", "softp4.codegen.wide"})}


def _modules(folder: Path, package: str, *suffixes: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and file of every module below ``folder``; rooms are links, which are followed."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _modules(path, f"{package}.{path.name}", *suffixes)
        elif path.suffix in suffixes:
            yield package if path.stem == "__init__" else f"{package}.{path.stem}", path


def _files(*suffixes: str) -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        yield from _modules(folder, package, *suffixes)


@cache
def modules() -> dict[str, Path]:
    return {
        name: path for package, folder in PACKAGES.items() for name, path in _modules(folder, package, ".py")
    }


@cache
def imports(module: str) -> frozenset[str]:
    """Return what a module imports, anywhere in it: modules of ours by their names, others likewise."""
    found = set()
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = names & modules().keys()
            found |= inside | ({node.module} if names - inside else set())
    return frozenset(found - {module})


def room(module: str) -> str:
    return max((name for name in ROOMS if f"{module}.".startswith(f"{name}.")), key=len)


def test_the_modules_are_found() -> None:
    assert {room(module) for module in modules()} == ROOMS.keys()
    assert "weir.controller.desired" in imports("weir.controller.fabric")


def upward(imported: Callable[[str], Set[str]]) -> list[str]:
    """Return the imports from rooms that their modules may not know."""
    return [
        f"{module} imports {other}"
        for module in modules()
        for other in imported(module) & modules().keys()
        if room(other) not in {room(module), *ROOMS[room(module)]}
    ]


def test_rooms_know_what_they_may_know() -> None:
    assert not upward(imports), "\n".join(upward(imports))


def test_an_import_of_a_room_above_is_found() -> None:
    low, high = "weir.wire.definition", "weir.train.worker"
    planted = {low: imports(low) | {high}}
    assert upward(lambda module: planted.get(module, imports(module))) == [f"{low} imports {high}"]


FEW_LINES: Final = 40
_FOLDERS: Final = [
    "agent_service",
    "bench",
    "controller",
    "examples",
    "host_agent",
    "mininet",
    "p4src",
    "simulator",
    "softswitch/softp4",
    "softswitch/tests",
    "weir",
    "wire",
]

# Why a file is short, by patterns of paths. A package's docstring and what it offers need no reason.
SHORT: Final = {
    "*/__main__.py": "`python -m`",
    "*/conftest.py": "pytest's name",
    "*tests/*test_*.py": "the name of the module or page that is tested, or of a file on a machine with CUDA",
    "agent_service/proto/agent_pb2.py": "protobuf's name",
    "agent_service/status_pages.py": "the client, which alone reads pages, is long enough",
    "bench/switch/p4runtime.py": "a case",
    "bench/switch/aggregator.py": "the switch's part of several cases",
    "controller/bfrt/messages.py": "protobuf's messages, made when they are first needed",
    "controller/claimed_ports.py": "what the service and its status share",
    "controller/tables/*.py": "a control of the P4 program",
    "host_agent/compression/kernels/tiles.py": "what two kernels share",
    "host_agent/compression/sparsifiers/*.py": "a sparsifier",
    "host_agent/compression/vectors.py": "what sparsifiers and encodings share",
    "host_agent/placement/partitioners/*.py": "a partitioner",
    "host_agent/torch/parameter_server/serve.py": "a program",
    "host_agent/torch/store_holder.py": "what rendezvous and servers share",
    "host_agent/torch/unwrapping.py": "what DS-Sync and servers' workers share",
    "host_agent/transport/arrays.py": "what all bindings of C share",
    "mininet/bmv2_queues.py": "a program",
    "mininet/leaf_spine.py": "a program",
    "mininet/single.py": "a program",
    "softswitch/softp4/bench/contenders.py": "what all benchmarks share",
    "softswitch/softp4/bench/tied.py": "a program",
    "softswitch/softp4/codegen/widths.py": "what all generators of C share",
    "softswitch/softp4/errors.py": "what all parts of the control plane raise",
    "softswitch/softp4/failures.py": "what threads of any kind run in",
    "softswitch/softp4/native/batches.py": "a choice of users, which ports ask for",
    "softswitch/softp4/native/shared_memory.py": "what rings and commands share",
    "softswitch/softp4/p4rt/*.py": "an entity or an encoding of P4Runtime",
    "softswitch/softp4/p4runtime/*.py": "what servers and clients of P4Runtime share",
    "softswitch/softp4/program/*.py": "errors, limits or places in the source, of all parts of a program",
    "softswitch/softp4/state/action_checks.py": "what all kinds of tables share",
    "softswitch/tests/differential/*.py": "what scenarios of all programs share",
    "softswitch/tests/harness/*.py": "what several folders' tests share",
    "tests/controller/helpers.py": "what several rooms' tests share",
    "tests/controller/finsy_beside_weir.py": "a program",
    "tests/deploy/hub_worker.py": "a program",
    "tests/frameworks/comparing.py": "what all frameworks' programs share",
    "tests/frameworks/programs/trainer.py": "a program",
    "tests/frameworks/sections.py": "what several tests read of a page",
    "tests/harness/frozen.py": "imported by its name, after all else",
    "tests/harness/programs.py": "a program",
    "tests/harness/source.py": "what several rooms' tests share",
    "tests/host_agent/torch/suite/compare.py": "a program",
    "tests/mininet/knock.py": "a program",
    "tests/mininet/stations.py": "a program",
    "tests/p4src/differential.py": "what several targets' tests share",
    "weir/autoload.py": "torch's entry point, which imports nothing of Weir's",
    "weir/extras.py": "what commands and the test of the packages share",
    "weir/pcap/audit/serial.py": "what checks share, written apart from the switch's",
    "weir/process/imports.py": "what commands and templates share",
    "weir/process/memory.py": "what workers and benchmarks share",
    "weir/train/models/*.py": "a model",
    "wire/addresses.py": "what controller, agents and simulator share",
}


def test_no_file_is_short_without_a_reason() -> None:
    root = Path(__file__).parents[1]
    files = [
        str(path.relative_to(root))
        for folder in (*_FOLDERS, "tests")
        for path in (root / folder).rglob("*.py")
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < FEW_LINES
    ]
    wrong = [name for name in files if not any(fnmatch(name, pattern) for pattern in SHORT)]
    assert not wrong, f"join these with the files that they serve: {wrong}"
    unused = [pattern for pattern in SHORT if not any(fnmatch(name, pattern) for name in files)]
    assert not unused, f"no short files: {unused}"


def test_native_code_knows_what_its_room_may_know() -> None:
    """C includes headers of its own room, and of those that the room's Python may import."""
    files = [(room(module), path) for module, path in _files(".c", ".h")]
    owners: dict[str, set[str]] = {}
    for owner, path in files:
        owners.setdefault(path.name, set()).add(owner)
    assert {"weir.host_agent.transport"} == owners["lanes.h"]
    wrong = [
        f"{path} includes {header}"
        for owner, path in files
        for header in re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
        if not owners[header] & {owner, *ROOMS[owner]}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("place", ["transport", "collectives", "compression", "flows", "placement"])
def test_native_code_is_with_its_owner(place: str) -> None:
    """A room's Python calls all of the functions that its own C has for Python, and no others."""
    name = f"weir.host_agent.{place}"
    text = "\n".join(path.read_text() for module, path in modules().items() if room(module) == name)
    bound = set(re.findall(r'"(weir_\w+)": ', text))
    called = set(re.findall(r"\.(weir_\w+)", text))
    assert bound == called
    assert bound


def test_encodings_do_not_know_the_sparsifiers_that_stand_above_them() -> None:
    encodings = [module for module in modules() if module.startswith("weir.host_agent.compression.encodings")]
    known = {other for module in encodings for other in imports(module)}
    assert "weir.host_agent.compression.bucket_layout" in known
    assert not {other for other in known if other.startswith("weir.host_agent.compression.sparsifiers")}


def test_rooms_do_without_what_they_must_do_without() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        for other in imports(module)
        for place, missing in WITHOUT.items()
        if f"{module}.".startswith(f"{place}.") and other.partition(".")[0] in missing
    ]
    assert not wrong, "\n".join(wrong)


def test_the_switch_stands_alone() -> None:
    """Neither the switch nor its tests and benchmarks import Weir, or modules of Weir's tests."""
    switch = PACKAGES["softp4"].parent
    wrong = []
    for path in sorted(switch.rglob("*.py")):
        for name in _imported(path):
            parts = name.split(".")
            place = switch.joinpath(*parts[:-1])
            missing = parts[0] == "tests" and not any(
                (place / f"{parts[-1]}{end}").exists() for end in ("", ".py")
            )
            if parts[0] == "weir" or missing:
                wrong.append(f"{path.relative_to(switch)} imports {name}")
    assert not wrong, "\n".join(wrong)


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file names in its imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_no_circles_of_rooms() -> None:
    circles = [part for part in _components(ROOMS) if len(part) > 1]
    assert not circles, circles


def test_no_tensor_of_a_callers_is_made_numpys() -> None:
    """``Tensor.numpy`` forbids for ever that a storage is resized, which FSDP does; see ``tensor_memory``."""
    wrong = [
        f"{module}:{node.lineno}"
        for module, path in modules().items()
        if module.startswith("weir.host_agent.")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("numpy", "__array__")
    ]
    assert not wrong, "\n".join(wrong)


def test_docstrings_do_not_begin_with_a_question() -> None:
    """They say what a thing does or is. The soft switch's are not there yet."""
    question = re.compile(r"(What|Whether|Who|How|Where|Why)\b")
    wrong = [
        f"{module}: {text.splitlines()[0]}"
        for module, path in modules().items()
        if not module.startswith("softp4")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and question.match(text := ast.get_docstring(node) or "")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circles() -> None:
    graph = {module: imports(module) & modules().keys() for module in modules()}
    circles = {frozenset(part) for part in _components(graph) if len(part) > 1}
    assert circles == CIRCLES, "\n".join(" - ".join(sorted(circle)) for circle in circles - CIRCLES)


def _components(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph (Tarjan)."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 4 * len(graph)))
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    sys.setrecursionlimit(limit)  # other tests of this process count on it
    return found
