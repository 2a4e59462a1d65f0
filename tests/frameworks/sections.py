# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/guides/frameworks.md, for programs that run them."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "frameworks.md"


def run(heading: str, backend: str, **names: Any) -> dict[str, Any]:
    """Run the Python lines in a section of the page, for a backend.

    Args:
        heading: of the section.
        backend: stands for "weir" in the lines.
        names: that the lines take as given.

    Returns:
        All names after that.
    """
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (lines, *_others) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(lines.replace('"weir"', repr(backend)), names)
    return names
