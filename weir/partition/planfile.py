# SPDX-License-Identifier: Apache-2.0
"""Files of plans: what ``weir partition --out`` writes and ``weir train --placement`` reads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weir.host_agent.placement.hashing import Buckets
from weir.host_agent.placement.samples import Integers, Samples, svmlight_samples, text_samples
from weir.host_agent.placement.traffic import Placement, PlacementError


@dataclass(frozen=True)
class Source:
    """The data of a plan: folders of text, or one file in svmlight's format.

    lines: of text in a sample; 0: a file each. hold_out: every so many samples are not placed nor trained on,
    but measured on; 0: none.
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
            raise ValueError(f"{', '.join(map(str, self.paths))}: several folders, or one file")
        found = text_samples(*self.paths, lines=self.lines) if folders else svmlight_samples(self.paths[0])
        held = np.arange(len(found)) % self.hold_out == 0 if self.hold_out else np.zeros(len(found), np.bool_)
        return found.only(np.flatnonzero(~held)), found.only(np.flatnonzero(held))


@dataclass(frozen=True)
class PlanFile:
    """A placement with all that training needs to use it."""

    source: Source
    placement: Placement
    buckets: Buckets | None

    def save(self, file: Path) -> None:
        """Write it as JSON."""
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
        file.write_text(json.dumps(said))

    @classmethod
    def load(cls, file: Path) -> "PlanFile":
        """Return the plan in a file. Raises PlacementError when it is none."""
        placement = Placement.load(file)
        try:
            said: Any = json.loads(file.read_text())
            source = Source(tuple(map(Path, said["data"])), int(said["lines"]), int(said["hold_out"]))
            hashed = said["buckets"]
            buckets = hashed and Buckets(
                int(hashed["count"]), _array(hashed["of_feature"]), _array(hashed["signs"])
            )
            return cls(source, placement, buckets)
        except (ValueError, KeyError, TypeError) as error:
            raise PlacementError(f"{file} is no plan of weir partition: {error!r}") from None


def _array(numbers: Any) -> Integers:
    return np.array(numbers, np.int64)
