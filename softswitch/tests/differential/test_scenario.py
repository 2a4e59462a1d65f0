# SPDX-License-Identifier: Apache-2.0
"""Scenarios of programs that have lost a table which P4Info still has."""

from dataclasses import replace
from pathlib import Path

from google.protobuf import text_format

from softp4.p4runtime.schema import p4info_pb2
from tests.differential.scenario import ScenarioMaker
from tests.differential.subjects import ours
from tests.programs import FOLDER


def test_a_table_that_was_optimised_away_has_no_entries(tmp_path: Path) -> None:
    subject = ours("matching", tmp_path, FOLDER / "matching.p4info.txtpb")
    info = text_format.Parse(subject.p4info.read_text(), p4info_pb2.P4Info())
    lost = info.tables.add()
    lost.CopyFrom(next(table for table in info.tables if table.match_fields and not table.is_const_table))
    lost.preamble.name, lost.preamble.id = "Ingress.lost", 0x0200FFFF
    action = info.actions.add()
    action.preamble.name, action.preamble.id = "Ingress.lost_too", 0x0100FFFF
    lost.action_refs.add(id=action.preamble.id)
    written = tmp_path / "p4info.txtpb"
    written.write_text(text_format.MessageToString(info))
    for seed in range(20):
        scenario = ScenarioMaker(replace(subject, p4info=written), seed).scenario(frames=1)
        named = {row.table for row in scenario.rows} | {default.table for default in scenario.defaults}
        assert named and "Ingress.lost" not in named
