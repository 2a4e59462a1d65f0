# SPDX-License-Identifier: Apache-2.0
"""Write what P4, C and Wireshark need of the definition: ``python -m weir.wire.generate [--check]``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

from weir.wire import definition as d

ROOT: Final = Path(__file__).resolve().parent.parent
NOTICE: Final = "Generated from wire/definition.py by `python -m weir.wire.generate`. Do not edit."


def _constants() -> Iterator[tuple[str, int, int]]:
    """Yield every named constant as (name, value, width in bits in P4)."""
    yield "VERSION", d.VERSION, 4
    yield "UDP_PORT", d.UDP_PORT, 16
    yield "FLOW_PORT", d.FLOW_PORT, 16
    yield "GROUP_LANES", d.GROUP_LANES, 32
    yield "GROUPS", d.GROUPS, 32
    yield "SLOT_LANES", d.SLOT_LANES, 32
    yield "MAX_COLUMNS", d.MAX_COLUMNS, 32
    yield "MAX_CHILDREN", d.MAX_CHILDREN, 8
    yield "MAX_WORKERS", d.MAX_WORKERS, 32
    yield "MIN_BLOCK_LOG2", d.MIN_BLOCK_LOG2, 4
    yield "MAX_BLOCK_LOG2", d.MAX_BLOCK_LOG2, 4
    yield "NO_BLOCK", d.NO_BLOCK, 32
    yield "WHOLE_PATH", d.WHOLE_PATH, 16
    yield "AUDIENCE_EXCEPT", d.AUDIENCE_EXCEPT, 16
    yield "AUDIENCE_ALL", d.AUDIENCE_ALL, 16
    yield "LAYER_CLASSES", d.LAYER_CLASSES, 4
    yield "MAGNITUDE_CLASSES", d.MAGNITUDE_CLASSES, 4
    yield "RELIABLE_DSCP", d.RELIABLE_DSCP, 6
    yield "BEST_EFFORT_DSCP", d.BEST_EFFORT_DSCP, 6
    yield "NOT_ECT", d.NOT_ECT, 2
    yield "ECT", d.ECT, 2
    yield "CE", d.CE, 2
    yield "SPINE_CLASSES", d.SPINE_CLASSES, 32
    for kind in d.PacketType:
        yield f"TYPE_{kind.name}", kind, 4
    for flow_kind in d.FlowType:
        yield f"FLOW_{flow_kind.name}", flow_kind, 4
    for flag in d.Flag:
        yield f"FLAG_{flag.name}", flag, 8
    yield "FLAGS", sum(d.Flag), 8
    for treatment in d.Treatment:
        yield f"TREATMENT_{treatment.name}", treatment, 32
    for mode in d.SprayMode:
        yield f"SPRAY_{mode.name}", mode, 2
    for op in d.Op:
        yield f"OP_{op.name}", op, 4
    for event in d.Event:
        if event not in d.V1MODEL_EVENTS:
            yield f"EVENT_{event.name}", event, 32
    yield "EVENTS", len(d.Event) - len(d.V1MODEL_EVENTS), 32


def _v1model_constants() -> Iterator[tuple[str, int, int]]:
    """Yield those that the program for v1model has alone."""
    for event in d.V1MODEL_EVENTS:
        yield f"EVENT_{event.name}", event, 32
    yield "V1MODEL_EVENTS", len(d.Event), 32


def _wide_constants() -> Iterator[tuple[str, int, int]]:
    """Yield those of wide packets, which not every P4 program has."""
    yield "WIDE_BLOCK_LOG2", d.WIDE_BLOCK_LOG2, 4
    yield "WIDE_LANES", d.WIDE_LANES, 32


def _host_constants() -> Iterator[tuple[str, int, int]]:
    """Yield those that hosts alone know."""
    yield "KEY_BYTES", d.KEY_BYTES, 32
    yield "WEIGHTS_MOST_DATA", d.WEIGHTS_DATA, 32
    for kind in d.WeightsType:
        yield f"WEIGHTS_TYPE_{kind.name}", kind, 4


def p4() -> str:
    """Return the P4 include: constants and header types."""
    lines = [
        f"// SPDX-License-Identifier: Apache-2.0\n// {NOTICE}",
        "#ifndef WEIR_WIRE_P4",
        "#define WEIR_WIRE_P4",
        "",
    ]
    # Each program uses those it needs; the rest must not make p4c warn.
    lines += [
        f'@noWarn("unused") const bit<{bits}> {name} = {value:#x};' for name, value, bits in _constants()
    ]
    for header in d.HEADERS:
        lines += ["", f"// {header.doc}", f"header {header.name}_t {{"]
        lines += [f"    bit<{f.bits}> {_p4_name(f.name)}; // {f.doc}" for f in header.fields]
        lines += ["}"]
    lines += ["", "// one group of lanes", "header lanes_t {"]
    lines += [f"    bit<32> l{i};" for i in range(d.GROUP_LANES)]
    lines += ["}", "", "#endif", ""]
    return "\n".join(lines)


def p4_v1model() -> str:
    """Return the P4 include of what ``weir_v1model`` has alone: constants."""
    lines = [
        f"// SPDX-License-Identifier: Apache-2.0\n// {NOTICE}",
        "#ifndef WEIR_EVENTS_P4",
        "#define WEIR_EVENTS_P4",
        "",
        *(f"const bit<{bits}> {name} = {value:#x};" for name, value, bits in _v1model_constants()),
        *("", "#endif", ""),
    ]
    return "\n".join(lines)


def p4_wide() -> str:
    """Return the P4 include of wide packets: constants, the header of their lanes, what goes over them."""
    lines = [
        f"// SPDX-License-Identifier: Apache-2.0\n// {NOTICE}",
        "#ifndef WEIR_WIDE_P4",
        "#define WEIR_WIDE_P4",
        "",
    ]
    lines += [f"const bit<{bits}> {name} = {value:#x};" for name, value, bits in _wide_constants()]
    lines += ["", "// all lanes of a wide packet", "header wide_lanes_t {"]
    lines += [f"    bit<32> l{i};" for i in range(d.WIDE_LANES)]
    lines += ["}", "", "#define EACH_WIDE_LANE(DO) \\"]
    names = [f"DO(l{i})" for i in range(d.WIDE_LANES)]
    lines += [f"    {' '.join(names[at : at + 8])} \\" for at in range(0, d.WIDE_LANES, 8)]
    return "\n".join([*lines, "", "#endif", ""])


def _p4_name(name: str) -> str:
    """Return a field's name in P4-16, where `type` is a keyword."""
    return "kind" if name == "type" else name


def c() -> str:
    """Return the C header: constants, and byte offset, shift and width of every field."""
    lines = [
        f"/* SPDX-License-Identifier: Apache-2.0 */\n/* {NOTICE} */",
        "#ifndef WEIR_WIRE_H",
        "#define WEIR_WIRE_H",
        "",
    ]
    constants = (*_constants(), *_wide_constants(), *_host_constants())
    lines += [f"#define WEIR_{name} {value}u" for name, value, _ in constants]
    for header in (*d.HEADERS, d.WEIGHTS):
        lines += ["", f"/* {header.doc} */", f"#define WEIR_{header.name.upper()}_SIZE {header.size}u"]
        bit = 0
        for field in header.fields:
            prefix = f"WEIR_{header.name.upper()}_{field.name.upper()}"
            lines.append(f"#define {prefix}_OFFSET {bit // 8}u /* {field.doc} */")
            if field.bits < 8:
                lines.append(f"#define {prefix}_SHIFT {8 - bit % 8 - field.bits}u")
            bit += field.bits
    lines += ["", "#endif", ""]
    return "\n".join(lines)


def lua() -> str:
    """Return the Wireshark dissectors: of slot packets, of flow packets and of published weights."""
    fields, reads = [], []
    for header in (*d.HEADERS, d.WEIGHTS):
        bit = 0
        for f in header.fields:
            var = f"f_{header.name}_{f.name}"
            width = max(8, f.bits)
            mask = f", {((1 << f.bits) - 1) << (8 - bit % 8 - f.bits):#x}" if f.bits < 8 else ""
            base = "base.HEX" if f.name in _LUA_HEX else "base.DEC"
            values = _LUA_NAMES.get((header.name, f.name), "nil")
            name = f.name if header is d.WEIR else f"{header.name}.{f.name}"
            fields.append(
                f'local {var} = ProtoField.uint{width}("weir.{name}", "{f.name}", {base}, {values}{mask})'
            )
            reads.append((header.name, var, bit // 8, width // 8))
            bit += f.bits
    weir_reads = [f"  {_lua_add(v, f'buf({o}, {n})')}" for h, v, o, n in reads if h == "weir"]
    column_reads = [f"    add_block(ct, {v}, buf(at + {o}, {n}))" for h, v, o, n in reads if h == "column"]
    flow_reads = [f"  {_lua_add(v, f'buf({o}, {n})')}" for h, v, o, n in reads if h == "flow"]
    weights_reads = [f"  {_lua_add(v, f'buf({o}, {n})')}" for h, v, o, n in reads if h == "weights"]
    bits = {h: [f"f_{h}_flag_{flag.name.lower()}" for flag in d.Flag if flag.name] for h in ("weir", "flow")}
    for owner, names in bits.items():
        prefix = "weir" if owner == "weir" else "weir.flow"
        for var, flag in zip(names, d.Flag, strict=True):
            name = str(flag.name).lower()
            fields.append(
                f'local {var} = ProtoField.bool("{prefix}.flags.{name}", "{name}", 8, nil, {flag.value:#x})'
            )
    slot_fields = ", ".join(v for h, v, _, _ in reads if h in ("weir", "column"))
    flow_fields = ", ".join(v for h, v, _, _ in reads if h == "flow")
    weights_fields = ", ".join(v for h, v, _, _ in reads if h == "weights")
    return f"""-- SPDX-License-Identifier: Apache-2.0
-- {NOTICE}
-- Use: wireshark -X lua_script:weir.lua, or copy it into Wireshark's plugin folder.
local weir = Proto("weir", "Weir in-network aggregation")
local flow = Proto("weir_flow", "Weir flow")
local weights = Proto("weir_weights", "Weir weights")
local types = {{ {_lua_values(d.PacketType)} }}
local ops = {{ {_lua_values(d.Op, str)} }}
local flow_types = {{ {_lua_values(d.FlowType)} }}
local weights_types = {{ {_lua_values(d.WeightsType)} }}
local flags = {{ {_lua_values(d.Flag)} }}
{chr(10).join(fields)}
local f_lanes = ProtoField.bytes("weir.lanes", "lanes")
local f_data = ProtoField.bytes("weir.flow.data", "data")
local f_weights_data = ProtoField.bytes("weir.weights.data", "data")
local f_request = ProtoField.framenum("weir.request", "contribution in", base.NONE, frametype.REQUEST)
local f_result = ProtoField.framenum("weir.response", "result in", base.NONE, frametype.RESPONSE)
local weir_flags = {{ {", ".join(bits["weir"])} }}
local flow_flags = {{ {", ".join(bits["flow"])} }}
weir.fields = {{ {slot_fields}, f_lanes, f_request, f_result, {", ".join(bits["weir"])} }}
flow.fields = {{ {flow_fields}, f_data, {", ".join(bits["flow"])} }}
weights.fields = {{ {weights_fields}, f_weights_data }}

-- frames of contributions and results, by job, slot, round and worker
local requests, results = {{}}, {{}}
function weir.init() requests, results = {{}}, {{}} end

local function flag_names(bits)
  local names = ""
  for value = 0, 7 do
    local flag = bit.lshift(1, value)
    if bit.band(bits, flag) ~= 0 then names = names .. " " .. (flags[flag] or "?") end
  end
  return names
end

local function add_flags(t, field, range, bits)
  local item = t:add(field, range)
  item:append_text(flag_names(range:uint()))
  for _, one in ipairs(bits) do item:add(one, range) end
end

local function add_block(t, field, range)
  local item = t:add(field, range)
  if range:uint() == {d.NO_BLOCK} then item:append_text(" (none)") end
end

local function add_block_size(t, field, range)
  local log2 = bit.band(range:uint(), 0x0f)
  t:add(field, range):append_text(" (blocks of " .. bit.lshift(1, log2) .. " lanes)")
end

-- Link a worker's contribution and the result for it: each shows the other's frame.
local function add_links(t, kind, buf, pinfo)
  local job, slot, round, worker = buf(4, 4):uint(), buf(10, 2):uint(), buf(12, 4):uint(), buf(8, 1):uint()
  local key = table.concat({{ job, slot, round, worker }}, ":")
  local mine = kind == {d.PacketType.CONTRIBUTION.value} and requests or results
  if kind ~= {d.PacketType.CONTRIBUTION.value} and kind ~= {d.PacketType.RESULT.value} then return end
  if not pinfo.visited and not mine[key] then mine[key] = pinfo.number end
  if mine == requests and results[key] then t:add(f_result, results[key]):set_generated() end
  if mine == results and requests[key] then t:add(f_request, requests[key]):set_generated() end
end

function weir.dissector(buf, pinfo, tree)
  if buf:len() < {d.WEIR.size} then return 0 end
  local t = tree:add(weir, buf())
{chr(10).join(weir_reads)}
  local kind = bit.band(buf(0, 1):uint(), 0x0f)
  local log2 = bit.band(buf(2, 1):uint(), 0x0f)
  add_links(t, kind, buf, pinfo)
  pinfo.cols.protocol = "Weir"
  pinfo.cols.info = string.format("%s job %08x worker %d slot %d round %d%s", types[kind] or "?",
    buf(4, 4):uint(), buf(8, 1):uint(), buf(10, 2):uint(), buf(12, 4):uint(), flag_names(buf(1, 1):uint()))
  local wide = log2 == {d.WIDE_BLOCK_LOG2}
  if not wide and (log2 < {d.MIN_BLOCK_LOG2} or log2 > {d.MAX_BLOCK_LOG2}) then return buf:len() end
  local at = {d.WEIR.size}
  local group_bytes = wide and {d.group_lanes(d.WIDE_BLOCK_LOG2) * 4} or {d.GROUP_LANES * 4}
  for column = 0, wide and 0 or bit.rshift({d.SLOT_LANES}, log2) - 1 do
    if at + {d.COLUMN.size} > buf:len() then return buf:len() end
    local ct = t:add(buf(at, {d.COLUMN.size}), "column " .. column)
{chr(10).join(column_reads)}
    at = at + {d.COLUMN.size}
  end
  for group = 0, {d.GROUPS - 1} do
    if bit.band(buf(3, 1):uint(), bit.lshift(1, group)) ~= 0 and at + group_bytes <= buf:len() then
      t:add(f_lanes, buf(at, group_bytes)):prepend_text("group " .. group .. " ")
      at = at + group_bytes
    end
  end
  return buf:len()
end

function flow.dissector(buf, pinfo, tree)
  if buf:len() < {d.FLOW.size} then return 0 end
  local t = tree:add(flow, buf())
{chr(10).join(flow_reads)}
  pinfo.cols.protocol = "Weir flow"
  pinfo.cols.info = string.format("%s flow %08x worker %d tensor %d index %d of %d%s",
    flow_types[bit.band(buf(0, 1):uint(), 0x0f)] or "?", buf(4, 4):uint(), buf(3, 1):uint(),
    buf(8, 4):uint(), buf(12, 4):uint(), buf(16, 4):uint(), flag_names(buf(1, 1):uint()))
  if buf:len() > {d.FLOW.size} then t:add(f_data, buf({d.FLOW.size})) end
  return buf:len()
end

function weights.dissector(buf, pinfo, tree)
  if buf:len() < {d.WEIGHTS.size} then return 0 end
  local t = tree:add(weights, buf())
{chr(10).join(weights_reads)}
  pinfo.cols.protocol = "Weir weights"
  pinfo.cols.info = string.format("%s job %08x version %d%s index %d count %d",
    weights_types[bit.band(buf(0, 1):uint(), 0x0f)] or "?", buf(4, 4):uint(), buf(8, 4):uint(),
    buf(1, 1):uint() == 1 and " snapshot" or "", buf(12, 4):uint(), buf(16, 4):uint())
  if buf:len() > {d.WEIGHTS.size} then t:add(f_weights_data, buf({d.WEIGHTS.size})) end
  return buf:len()
end

DissectorTable.get("udp.port"):add({d.UDP_PORT}, weir)
DissectorTable.get("udp.port"):add({d.FLOW_PORT}, flow)
DissectorTable.get("udp.port"):add({d.WEIGHTS_PORT}, weights)
"""


def _lua_add(field: str, range_: str) -> str:
    """Return the Lua statement that shows a field of a packet."""
    header = field.split("_")[1]
    if field.endswith("_flags"):
        return f"add_flags(t, {field}, {range_}, {header}_flags)"
    if field.endswith("_block_log2"):
        return f"add_block_size(t, {field}, {range_})"
    return f"t:add({field}, {range_})"


_LUA_HEX: Final = {"groups", "included", "audience", "check", "job", "flags", "flow"}
_LUA_NAMES: Final = {
    ("weir", "type"): "types",
    ("weir", "op"): "ops",
    ("flow", "type"): "flow_types",
    ("weights", "type"): "weights_types",
}


def _lua_values(members: Iterable[IntEnum], spell: Callable[[str], str] = str.lower) -> str:
    """Return a Lua table's contents: value to name."""
    return ", ".join(f'[{member.value}] = "{spell(member.name)}"' for member in members)


OUTPUTS: Final[dict[str, Callable[[], str]]] = {
    "p4src/shared/wire.p4": p4,
    "p4src/v1model/events.p4": p4_v1model,
    "p4src/v1model/wide.p4": p4_wide,
    "host_agent/transport/csrc/wire.h": c,
    "wire/weir.lua": lua,
}


def stale() -> list[str]:
    """Return the paths of generated files that differ from what the definition says."""
    return [p for p, make in OUTPUTS.items() if not (ROOT / p).exists() or (ROOT / p).read_text() != make()]


def main() -> None:
    """Write the generated files, or with ``--check`` name the stale ones and exit 1."""
    if "--check" in sys.argv[1:]:
        if paths := stale():
            sys.exit(f"stale, run `python -m weir.wire.generate`: {', '.join(paths)}")
        return
    for path, make in OUTPUTS.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(make())


if __name__ == "__main__":
    main()
