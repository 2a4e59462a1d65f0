# SPDX-License-Identifier: Apache-2.0
"""Files of plans: what ``weir partition --plan`` writes and ``weir train --placement`` reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from softp4.native.files import write_atomically
from softp4.native.json_text import parse_object
from weir.host_agent.placement.hashing import Buckets
from weir.host_agent.placement.samples import Integers, Samples, svmlight_samples, text_samples
from weir.host_agent.placement.traffic import Placement, PlacementError, reading, whole, wholes

_MOST: Final = 1 << 40


@dataclass(frozen=True)
class Source:
    """The data of a plan: folders of text, or one file in svmlight's format.

    lines: of text in a sample; 0: a file each. hold_out: one of this many samples are not placed nor trained
    on, but measured on; 0: none.
    """

    paths: tuple[Path, ...]
    lines: int = 0
    hold_out: int = 0

    def read(self) -> tuple[Samples, Samples]:
        """Return the samples that are placed, and those that are held out.

        Raises:
            ValueError: what is read is neither text nor samples, or is not there.
        """
        if missing := [str(path) for path in self.paths if not path.exists()]:
            raise ValueError(f"{', '.join(missing)}: no such folder or file")
        folders = all(path.is_dir() for path in self.paths)
        if not folders and len(self.paths) > 1:
            raise ValueError(f"{', '.join(map(str, self.paths))}: give several folders, or one file")
        found = text_samples(*self.paths, lines=self.lines) if folders else svmlight_samples(self.paths[0])
        held = np.arange(len(found)) % self.hold_out == 0 if self.hold_out else np.zeros(len(found), np.bool_)
        return found.only(np.flatnonzero(~held)), found.only(np.flatnonzero(held))


@dataclass(frozen=True)
class PlanFile:
    """A placement with all that training needs to use it."""

    source: Source
    placement: Placement
    buckets: Buckets | None

    def samples(self) -> tuple[Samples, Samples]:
        """Return the samples that are placed, and those that are held out.

        Raises:
            PlacementError: they are others than those that were placed.
            ValueError: as of ``Source.read``.
        """
        placed, held_out = self.source.read()
        width = placed.width if self.buckets is None else self.buckets.of_feature.shape[1]
        for what, planned, found in (
            ("samples", self.placement.of_sample.size, len(placed)),
            ("features", width, placed.width),
            ("parameters", self.placement.of_parameter.size, self._parameters(placed)),
        ):
            if planned != found:
                raise PlacementError(
                    f"the plan is of {planned} {what}, and {', '.join(map(str, self.source.paths))} has "
                    f"{found}: make the plan again"
                )
        return placed, held_out

    def _parameters(self, placed: Samples) -> int:
        return placed.width if self.buckets is None else self.buckets.count

    def save(self, file: Path) -> None:
        """Write it as JSON. Raises OSError; an older file is then as it was."""
        buckets = self.buckets
        said = {
            "data": [str(path.resolve()) for path in self.source.paths],
            "lines": self.source.lines,
            "hold_out": self.source.hold_out,
            **self.placement.as_json(),
            "buckets": buckets
            and {
                "count": buckets.count,
                "of_feature": buckets.of_feature.tolist(),
                "signs": buckets.signs.tolist(),
            },
        }
        write_atomically(file, json.dumps(said))

    @classmethod
    def load(cls, file: Path) -> "PlanFile":
        """Return the plan in a file. Raises PlacementError when it is none."""
        with reading(file, "plan of weir partition"):
            said = parse_object(file.read_bytes())
            source = Source(
                tuple(map(Path, _texts(said["data"]))),
                whole(said["lines"], "lines", 0, _MOST),
                whole(said["hold_out"], "hold_out", 0, _MOST),
            )
            hashed = said["buckets"]
            return cls(source, Placement.from_json(said), None if hashed is None else _buckets(hashed))


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(one, str) for one in values):
        raise ValueError("data must be a list of folders, or of one file")
    if any("\0" in one for one in values):
        raise ValueError("data has an invalid file name")
    return values


def _buckets(said: object) -> Buckets:
    if not isinstance(said, dict):
        raise ValueError(f"buckets is {type(said).__name__}, not an object")
    count = whole(said["count"], "count of buckets", 1, _MOST)
    of_feature = _table(said["of_feature"], "of_feature", 0, count - 1)
    signs = _table(said["signs"], "signs", -1, 1)
    if of_feature.shape != signs.shape or not signs.all():
        raise ValueError(f"signs of shape {signs.shape}, each 1 or -1, do not fit {of_feature.shape} buckets")
    return Buckets(count, of_feature, signs)


def _table(rows: object, name: str, least: int, most: int) -> Integers:
    """Return rows of equal length as an array of two dimensions. ValueError for anything else."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{name} must be a list of lists")
    found = [wholes(row, name, least, most) for row in rows]
    if len({row.size for row in found}) != 1:
        raise ValueError(f"the rows of {name} must have equal lengths")
    return np.stack(found)
