# SPDX-License-Identifier: Apache-2.0
"""What a run of the cases found: as JSON, and as a table of counts and of every case that did not pass."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.conformance.run import Outcome, Verdict

_LONGEST_REASON: Final = 300


@dataclass(frozen=True)
class Row:
    """One case: what p4c said when it refused it, or else the outcome for each switch."""

    case: str
    not_compiled: str | None
    outcomes: Mapping[str, Outcome]


def as_json(rows: Sequence[Row]) -> str:
    """Return every case with its outcomes."""
    return json.dumps({row.case: _cell(row) for row in rows}, indent=1) + "\n"


def _cell(row: Row) -> Any:
    if row.not_compiled is not None:
        return {"p4c": row.not_compiled}
    return {
        switch: outcome.verdict.value + (f": {outcome.reason}" if outcome.reason else "")
        for switch, outcome in row.outcomes.items()
    }


def as_markdown(rows: Sequence[Row]) -> str:
    """Count, then the exceptions with their reasons."""
    ran = [row for row in rows if row.not_compiled is None]
    switches = list(ran[0].outcomes) if ran else []
    lines = ["| switch | cases | pass | fail | refused |", "| --- | --- | --- | --- | --- |"]
    for switch in switches:
        count = Counter(row.outcomes[switch].verdict for row in ran)
        lines.append(
            f"| {switch} | {len(ran)} | " + " | ".join(str(count[verdict]) for verdict in Verdict) + " |"
        )
    lines += ["", f"p4c refuses {len(rows) - len(ran)} more:", ""]
    lines += [f"- `{row.case}`: {_short(row.not_compiled)}" for row in rows if row.not_compiled is not None]
    for verdict in (Verdict.FAIL, Verdict.REFUSED):
        for switch in switches:
            found = [
                (row.case, row.outcomes[switch]) for row in ran if row.outcomes[switch].verdict is verdict
            ]
            if found:
                lines += ["", f"{switch}, {verdict.value}:", ""]
                lines += [f"- `{case}`: {_short(outcome.reason)}" for case, outcome in found]
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    reason = " ".join(reason.split())
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 1] + "…"
