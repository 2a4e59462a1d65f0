# SPDX-License-Identifier: Apache-2.0
"""SONiC's own YANG models, where a folder has them, as judges of a configuration.

Needs yangson, jinja2, and pyang for the IETF's modules.
"""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from yangson import DataModel
from yangson.exceptions import YangsonException
from yangson.schemanode import LeafNode, ListNode, SchemaNode

ROOTS: Final = (
    "dscp-tc-map", "tc-queue-map", "tc-priority-group-map", "pfc-priority-queue-map", "scheduler",
    "wred-profile", "buffer-pool", "buffer-profile", "buffer-queue", "buffer-pg", "queue", "port-qos-map",
    "pfcwd",
)  # fmt: skip
SKIPPED: Final = frozenset({"PORT", "DEVICE_METADATA"})
_IMPORT: Final = re.compile(r"^\s*import\s+([\w-]+)", re.MULTILINE)
_REVISION: Final = re.compile(r"^\s*revision\s+\"?([\d-]+)", re.MULTILINE)
_NAMESPACE: Final = re.compile(r"^\s*namespace\s+\"([^\"]+)\"", re.MULTILINE)


class Models:
    """A data model of the modules of the tables in question, and of what these import."""

    def __init__(self, folder: Path) -> None:
        self._modules: dict[str, str] = {}
        for root in ROOTS:
            self._add(f"sonic-{root}", folder)
        with tempfile.TemporaryDirectory() as place:
            for name, text in self._modules.items():
                (Path(place) / f"{name}@{_revision(text)}.yang").write_text(text)
            self._model = DataModel(self._library(), (place,))

    def _add(self, name: str, folder: Path) -> None:
        if name in self._modules:
            return
        text = _text(name, folder).replace("[text()=", "[.=")  # the same, which yangson knows
        self._modules[name] = text
        for imported in _IMPORT.findall(text):
            self._add(imported, folder)

    def _library(self) -> str:
        import json

        modules = [
            {
                "name": name,
                "revision": _revision(text),
                "namespace": _NAMESPACE.findall(text)[0],
                "conformance-type": "implement" if name.startswith("sonic-") else "import",
            }
            for name, text in self._modules.items()
        ]
        return json.dumps({"ietf-yang-library:modules-state": {"module-set-id": "", "module": modules}})

    def problem(self, config: Mapping[str, Mapping[str, Any]]) -> str:
        """Return what the models have against a configuration; empty: nothing."""
        try:
            raw = self._converted({name: rows for name, rows in config.items() if name not in SKIPPED})
            raw |= self._ports(config["PORT"])
            self._model.from_raw(raw).validate()
        except (YangsonException, KeyError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _ports(self, ports: Mapping[str, Any]) -> dict[str, Any]:
        rows = [
            {"name": name, "lanes": row["lanes"], "speed": int(row["speed"])} for name, row in ports.items()
        ]
        return {"sonic-port:sonic-port": {"PORT": {"PORT_LIST": rows}}}

    def _converted(self, config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return YANG's JSON of tables: a key such as ``Ethernet0|3`` becomes the keys of a list's entry."""
        tables = {
            table.name: (module, table)
            for module in self._model.schema.children
            for table in getattr(module, "children", ())
        }
        raw: dict[str, Any] = {}
        for name, rows in config.items():
            module, table = tables[name]
            entries = [_entry(_list_for(table, key), key, row) for key, row in rows.items()]
            found = raw.setdefault(f"{module.ns}:{module.name}", {})
            found[name] = {f"{name}_LIST": entries}
        return raw


def _list_for(table: SchemaNode, key: str) -> ListNode:
    wanted = len(key.split("|"))
    for one in table.children:  # type: ignore[attr-defined]
        if isinstance(one, ListNode) and one.name == f"{table.name}_LIST" and len(one.keys) == wanted:
            return one
    raise ValueError(f"{table.name}: no list with {wanted} keys")


def _entry(one: ListNode, key: str, row: Mapping[str, Any]) -> dict[str, Any]:
    entry = {name: part for (name, _), part in zip(one.keys, key.split("|"), strict=True)}
    inner = next((child for child in one.children if isinstance(child, ListNode)), None)
    if inner is None:
        return entry | {name: _value(one, name, text) for name, text in row.items()}
    index, other = (leaf.name for leaf in inner.children)
    return {
        **entry,
        inner.name: [
            {index: _value(inner, index, a), other: _value(inner, other, b)} for a, b in row.items()
        ],
    }


def _value(one: ListNode, name: str, text: str) -> Any:
    """Return what YANG's JSON has for a text of SONiC's."""
    leaf = next((leaf for leaf in one.children if leaf.name == name), None)
    if not isinstance(leaf, LeafNode):
        raise ValueError(f"{one.name}: no leaf {name}")
    value = leaf.type.parse_value(text)
    if value is None:
        raise ValueError(f"{one.name}: {name} {text!r}")
    return leaf.type.to_raw(value)


def _text(name: str, folder: Path) -> str:
    for place in (folder / "yang-models", *_ietf()):
        if (file := place / f"{name}.yang").exists():
            return file.read_text()
    template = folder / "yang-templates" / f"{name}.yang.j2"
    return jinja2.Template(template.read_text()).render(yang_model_type="py")


def _ietf() -> list[Path]:
    return [Path(sys.prefix) / "share/yang/modules/ietf"]


def _revision(text: str) -> str:
    return max(_REVISION.findall(text))
