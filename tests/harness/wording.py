# SPDX-License-Identifier: Apache-2.0
"""Check that pages, code and comments avoid the phrases of two tables. Run by ``make check``.

The table in ``docs/internals/conventions.md`` is for everything, that in the glossary for pages.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

_CONVENTIONS: Final = "docs/internals/conventions.md"
_GLOSSARY: Final = "docs/start/glossary.md"

# P4 is left out with what is generated from the packet format: a change there needs p4c.
_LEFT_OUT: Final = re.compile(
    r"p4src/.*\.p4$|p4src/build/|wire/definition\.py$|csrc/wire\.h$|_pb2\.|^tests/test_wording\.py$|docs/results/results\.md$|bench/records/"
)
_SUFFIXES: Final = (".py", ".c", ".h", ".md", ".sh")
_GAP: Final = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:#|\*|//)?[ \t]*)"
_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def phrases(page: str) -> list[str]:
    """Return the phrases in the first column of a page's table that is headed "not" and "but"."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text.partition("| not | but |\n| --- | --- |\n")[2]
    rows = re.match(r"(?:\|.*\n?)*", table)
    assert rows and rows[0], f"{page}: no table of phrases"
    return [phrase.strip() for row in rows[0].splitlines() for phrase in row.split("|")[1].split(",")]


def pattern(wanted: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for phrases. One with a capital opens a sentence; all others match in any case."""
    opening = [re.escape(phrase) for phrase in wanted if phrase[0].isupper()]
    others = [_GAP.join(map(re.escape, phrase.split())) for phrase in wanted if not phrase[0].isupper()]
    parts = [rf"(?i:\b(?:{'|'.join(others)})\b)"] if others else []
    if opening:
        parts.append(rf"(?:^[ \t]*|[.:;#*/\"][ \t]*)(?:{'|'.join(opening)})\b")
    return re.compile("|".join(parts), re.MULTILINE)


def faults(text: str, forbidden: re.Pattern[str], page: bool) -> Iterator[tuple[int, str]]:
    """Yield line and phrase of each fault.

    Args:
        text: of a file.
        forbidden: see ``pattern``.
        page: it is Markdown, in which code and the targets of links do not count.
    """
    if page:
        text = _CODE.sub(lambda code: "\n" * code[0].count("\n") + "`", text)
    for found in forbidden.finditer(text):
        start = found.start() + len(found[0]) - len(found[0].lstrip())
        yield text.count("\n", 0, start) + 1, " ".join(found[0].split())


def main() -> int:
    """Print every fault; return 1 if there is any."""
    general = phrases(_CONVENTIONS)
    everywhere, in_pages = pattern(general), pattern([*general, *phrases(_GLOSSARY)])
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count = 0
    for name in listed.split():
        if not name.endswith(_SUFFIXES) or _LEFT_OUT.search(name) or name in (_CONVENTIONS, _GLOSSARY):
            continue
        page = name.endswith(".md")
        for line, phrase in faults((ROOT / name).read_text("utf-8"), in_pages if page else everywhere, page):
            print(f"{name}:{line}: {phrase!r}: see {_CONVENTIONS}")
            count += 1
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
