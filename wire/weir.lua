-- SPDX-License-Identifier: Apache-2.0
-- Generated from wire/definition.py by `python -m weir.wire.generate`. Do not edit.
-- Use: wireshark -X lua_script:weir.lua, or copy it into Wireshark's plugin folder.
local weir = Proto("weir", "Weir in-network aggregation")
local flow = Proto("weir_flow", "Weir flow")
local weights = Proto("weir_weights", "Weir weights")
local types = { [1] = "contribution", [2] = "result", [3] = "repeat" }
local ops = { [1] = "ADD", [2] = "MAX", [3] = "OR" }
local flow_types = { [1] = "chunk", [2] = "probe", [3] = "bitmap", [4] = "stop" }
local weights_types = { [1] = "data", [2] = "state", [3] = "ask" }
local flags = { [1] = "protected", [2] = "trimmed", [4] = "congested", [8] = "answer", [16] = "disagree", [32] = "elsewhere" }
local f_weir_version = ProtoField.uint8("weir.version", "version", base.DEC, nil, 0xf0)
local f_weir_type = ProtoField.uint8("weir.type", "type", base.DEC, types, 0xf)
local f_weir_flags = ProtoField.uint8("weir.flags", "flags", base.HEX, nil)
local f_weir_op = ProtoField.uint8("weir.op", "op", base.DEC, ops, 0xf0)
local f_weir_block_log2 = ProtoField.uint8("weir.block_log2", "block_log2", base.DEC, nil, 0xf)
local f_weir_groups = ProtoField.uint8("weir.groups", "groups", base.HEX, nil)
local f_weir_job = ProtoField.uint32("weir.job", "job", base.HEX, nil)
local f_weir_worker = ProtoField.uint8("weir.worker", "worker", base.DEC, nil)
local f_weir_layer = ProtoField.uint8("weir.layer", "layer", base.DEC, nil, 0xf0)
local f_weir_magnitude = ProtoField.uint8("weir.magnitude", "magnitude", base.DEC, nil, 0xf)
local f_weir_slot = ProtoField.uint16("weir.slot", "slot", base.DEC, nil)
local f_weir_round = ProtoField.uint32("weir.round", "round", base.DEC, nil)
local f_weir_included = ProtoField.uint32("weir.included", "included", base.HEX, nil)
local f_weir_audience = ProtoField.uint16("weir.audience", "audience", base.HEX, nil)
local f_weir_count = ProtoField.uint16("weir.count", "count", base.DEC, nil)
local f_weir_check = ProtoField.uint32("weir.check", "check", base.HEX, nil)
local f_column_block = ProtoField.uint32("weir.column.block", "block", base.DEC, nil)
local f_column_next = ProtoField.uint32("weir.column.next", "next", base.DEC, nil)
local f_flow_version = ProtoField.uint8("weir.flow.version", "version", base.DEC, nil, 0xf0)
local f_flow_type = ProtoField.uint8("weir.flow.type", "type", base.DEC, flow_types, 0xf)
local f_flow_flags = ProtoField.uint8("weir.flow.flags", "flags", base.HEX, nil)
local f_flow_layer = ProtoField.uint8("weir.flow.layer", "layer", base.DEC, nil, 0xf0)
local f_flow_magnitude = ProtoField.uint8("weir.flow.magnitude", "magnitude", base.DEC, nil, 0xf)
local f_flow_worker = ProtoField.uint8("weir.flow.worker", "worker", base.DEC, nil)
local f_flow_flow = ProtoField.uint32("weir.flow.flow", "flow", base.HEX, nil)
local f_flow_tensor = ProtoField.uint32("weir.flow.tensor", "tensor", base.DEC, nil)
local f_flow_index = ProtoField.uint32("weir.flow.index", "index", base.DEC, nil)
local f_flow_count = ProtoField.uint32("weir.flow.count", "count", base.DEC, nil)
local f_flow_first = ProtoField.uint32("weir.flow.first", "first", base.DEC, nil)
local f_weights_version = ProtoField.uint8("weir.weights.version", "version", base.DEC, nil, 0xf0)
local f_weights_type = ProtoField.uint8("weir.weights.type", "type", base.DEC, weights_types, 0xf)
local f_weights_snapshot = ProtoField.uint8("weir.weights.snapshot", "snapshot", base.DEC, nil)
local f_weights_size = ProtoField.uint16("weir.weights.size", "size", base.DEC, nil)
local f_weights_job = ProtoField.uint32("weir.weights.job", "job", base.HEX, nil)
local f_weights_number = ProtoField.uint32("weir.weights.number", "number", base.DEC, nil)
local f_weights_index = ProtoField.uint32("weir.weights.index", "index", base.DEC, nil)
local f_weights_count = ProtoField.uint32("weir.weights.count", "count", base.DEC, nil)
local f_weights_check = ProtoField.uint64("weir.weights.check", "check", base.HEX, nil)
local f_weir_flag_protected = ProtoField.bool("weir.flags.protected", "protected", 8, nil, 0x1)
local f_weir_flag_trimmed = ProtoField.bool("weir.flags.trimmed", "trimmed", 8, nil, 0x2)
local f_weir_flag_congested = ProtoField.bool("weir.flags.congested", "congested", 8, nil, 0x4)
local f_weir_flag_answer = ProtoField.bool("weir.flags.answer", "answer", 8, nil, 0x8)
local f_weir_flag_disagree = ProtoField.bool("weir.flags.disagree", "disagree", 8, nil, 0x10)
local f_weir_flag_elsewhere = ProtoField.bool("weir.flags.elsewhere", "elsewhere", 8, nil, 0x20)
local f_flow_flag_protected = ProtoField.bool("weir.flow.flags.protected", "protected", 8, nil, 0x1)
local f_flow_flag_trimmed = ProtoField.bool("weir.flow.flags.trimmed", "trimmed", 8, nil, 0x2)
local f_flow_flag_congested = ProtoField.bool("weir.flow.flags.congested", "congested", 8, nil, 0x4)
local f_flow_flag_answer = ProtoField.bool("weir.flow.flags.answer", "answer", 8, nil, 0x8)
local f_flow_flag_disagree = ProtoField.bool("weir.flow.flags.disagree", "disagree", 8, nil, 0x10)
local f_flow_flag_elsewhere = ProtoField.bool("weir.flow.flags.elsewhere", "elsewhere", 8, nil, 0x20)
local f_lanes = ProtoField.bytes("weir.lanes", "lanes")
local f_data = ProtoField.bytes("weir.flow.data", "data")
local f_weights_data = ProtoField.bytes("weir.weights.data", "data")
local f_request = ProtoField.framenum("weir.request", "contribution in", base.NONE, frametype.REQUEST)
local f_result = ProtoField.framenum("weir.response", "result in", base.NONE, frametype.RESPONSE)
local weir_flags = { f_weir_flag_protected, f_weir_flag_trimmed, f_weir_flag_congested, f_weir_flag_answer, f_weir_flag_disagree, f_weir_flag_elsewhere }
local flow_flags = { f_flow_flag_protected, f_flow_flag_trimmed, f_flow_flag_congested, f_flow_flag_answer, f_flow_flag_disagree, f_flow_flag_elsewhere }
weir.fields = { f_weir_version, f_weir_type, f_weir_flags, f_weir_op, f_weir_block_log2, f_weir_groups, f_weir_job, f_weir_worker, f_weir_layer, f_weir_magnitude, f_weir_slot, f_weir_round, f_weir_included, f_weir_audience, f_weir_count, f_weir_check, f_column_block, f_column_next, f_lanes, f_request, f_result, f_weir_flag_protected, f_weir_flag_trimmed, f_weir_flag_congested, f_weir_flag_answer, f_weir_flag_disagree, f_weir_flag_elsewhere }
flow.fields = { f_flow_version, f_flow_type, f_flow_flags, f_flow_layer, f_flow_magnitude, f_flow_worker, f_flow_flow, f_flow_tensor, f_flow_index, f_flow_count, f_flow_first, f_data, f_flow_flag_protected, f_flow_flag_trimmed, f_flow_flag_congested, f_flow_flag_answer, f_flow_flag_disagree, f_flow_flag_elsewhere }
weights.fields = { f_weights_version, f_weights_type, f_weights_snapshot, f_weights_size, f_weights_job, f_weights_number, f_weights_index, f_weights_count, f_weights_check, f_weights_data }

-- frames of contributions and results, by job, slot, round and worker
local requests, results = {}, {}
function weir.init() requests, results = {}, {} end

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
  if range:uint() == 4294967295 then item:append_text(" (none)") end
end

local function add_block_size(t, field, range)
  local log2 = bit.band(range:uint(), 0x0f)
  t:add(field, range):append_text(" (blocks of " .. bit.lshift(1, log2) .. " lanes)")
end

-- Link a worker's contribution and the result for it: each shows the other's frame.
local function add_links(t, kind, buf, pinfo)
  local job, slot, round, worker = buf(4, 4):uint(), buf(10, 2):uint(), buf(12, 4):uint(), buf(8, 1):uint()
  local key = table.concat({ job, slot, round, worker }, ":")
  local mine = kind == 1 and requests or results
  if kind ~= 1 and kind ~= 2 then return end
  if not pinfo.visited and not mine[key] then mine[key] = pinfo.number end
  if mine == requests and results[key] then t:add(f_result, results[key]):set_generated() end
  if mine == results and requests[key] then t:add(f_request, requests[key]):set_generated() end
end

function weir.dissector(buf, pinfo, tree)
  if buf:len() < 28 then return 0 end
  local t = tree:add(weir, buf())
  t:add(f_weir_version, buf(0, 1))
  t:add(f_weir_type, buf(0, 1))
  add_flags(t, f_weir_flags, buf(1, 1), weir_flags)
  t:add(f_weir_op, buf(2, 1))
  add_block_size(t, f_weir_block_log2, buf(2, 1))
  t:add(f_weir_groups, buf(3, 1))
  t:add(f_weir_job, buf(4, 4))
  t:add(f_weir_worker, buf(8, 1))
  t:add(f_weir_layer, buf(9, 1))
  t:add(f_weir_magnitude, buf(9, 1))
  t:add(f_weir_slot, buf(10, 2))
  t:add(f_weir_round, buf(12, 4))
  t:add(f_weir_included, buf(16, 4))
  t:add(f_weir_audience, buf(20, 2))
  t:add(f_weir_count, buf(22, 2))
  t:add(f_weir_check, buf(24, 4))
  local kind = bit.band(buf(0, 1):uint(), 0x0f)
  local log2 = bit.band(buf(2, 1):uint(), 0x0f)
  add_links(t, kind, buf, pinfo)
  pinfo.cols.protocol = "Weir"
  pinfo.cols.info = string.format("%s job %08x worker %d slot %d round %d%s", types[kind] or "?",
    buf(4, 4):uint(), buf(8, 1):uint(), buf(10, 2):uint(), buf(12, 4):uint(), flag_names(buf(1, 1):uint()))
  local wide = log2 == 10
  if not wide and (log2 < 5 or log2 > 8) then return buf:len() end
  local at = 28
  local group_bytes = wide and 512 or 128
  for column = 0, wide and 0 or bit.rshift(256, log2) - 1 do
    if at + 8 > buf:len() then return buf:len() end
    local ct = t:add(buf(at, 8), "column " .. column)
    add_block(ct, f_column_block, buf(at + 0, 4))
    add_block(ct, f_column_next, buf(at + 4, 4))
    at = at + 8
  end
  for group = 0, 7 do
    if bit.band(buf(3, 1):uint(), bit.lshift(1, group)) ~= 0 and at + group_bytes <= buf:len() then
      t:add(f_lanes, buf(at, group_bytes)):prepend_text("group " .. group .. " ")
      at = at + group_bytes
    end
  end
  return buf:len()
end

function flow.dissector(buf, pinfo, tree)
  if buf:len() < 24 then return 0 end
  local t = tree:add(flow, buf())
  t:add(f_flow_version, buf(0, 1))
  t:add(f_flow_type, buf(0, 1))
  add_flags(t, f_flow_flags, buf(1, 1), flow_flags)
  t:add(f_flow_layer, buf(2, 1))
  t:add(f_flow_magnitude, buf(2, 1))
  t:add(f_flow_worker, buf(3, 1))
  t:add(f_flow_flow, buf(4, 4))
  t:add(f_flow_tensor, buf(8, 4))
  t:add(f_flow_index, buf(12, 4))
  t:add(f_flow_count, buf(16, 4))
  t:add(f_flow_first, buf(20, 4))
  pinfo.cols.protocol = "Weir flow"
  pinfo.cols.info = string.format("%s flow %08x worker %d tensor %d index %d of %d%s",
    flow_types[bit.band(buf(0, 1):uint(), 0x0f)] or "?", buf(4, 4):uint(), buf(3, 1):uint(),
    buf(8, 4):uint(), buf(12, 4):uint(), buf(16, 4):uint(), flag_names(buf(1, 1):uint()))
  if buf:len() > 24 then t:add(f_data, buf(24)) end
  return buf:len()
end

function weights.dissector(buf, pinfo, tree)
  if buf:len() < 28 then return 0 end
  local t = tree:add(weights, buf())
  t:add(f_weights_version, buf(0, 1))
  t:add(f_weights_type, buf(0, 1))
  t:add(f_weights_snapshot, buf(1, 1))
  t:add(f_weights_size, buf(2, 2))
  t:add(f_weights_job, buf(4, 4))
  t:add(f_weights_number, buf(8, 4))
  t:add(f_weights_index, buf(12, 4))
  t:add(f_weights_count, buf(16, 4))
  t:add(f_weights_check, buf(20, 8))
  pinfo.cols.protocol = "Weir weights"
  pinfo.cols.info = string.format("%s job %08x version %d%s index %d count %d",
    weights_types[bit.band(buf(0, 1):uint(), 0x0f)] or "?", buf(4, 4):uint(), buf(8, 4):uint(),
    buf(1, 1):uint() == 1 and " snapshot" or "", buf(12, 4):uint(), buf(16, 4):uint())
  if buf:len() > 28 then t:add(f_weights_data, buf(28)) end
  return buf:len()
end

DissectorTable.get("udp.port"):add(9347, weir)
DissectorTable.get("udp.port"):add(9348, flow)
DissectorTable.get("udp.port"):add(9349, weights)
