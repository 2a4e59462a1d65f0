# SPDX-License-Identifier: Apache-2.0
"""Print the words of pages and how hard their prose is to read: ``python -m tests.harness.reading PAGE...``.

With ``--at COMMIT`` the pages are those of a commit. Words are those of the whole page. Sentences and the
Flesch-Kincaid grade are of the prose: without tables, headings and code. The grade is 0.39 times the words
per sentence plus 11.8 times the syllables per word minus 15.59. A group of vowels counts as a syllable, but
for a final e, and a number as a word of one. A colon ends a sentence.
"""

import argparse
import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]

_NO_PROSE: Final = re.compile(r"^```[\s\S]*?^```$|^\s*\|.*$|^#.*$|<!--.*?-->", re.MULTILINE)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE: Final = re.compile(r"`[^`]*`")
_END: Final = re.compile(r"[.!?:](?=\s|$)|\n\s*\n|\n\s*(?:[-*]|\d+\.) ")
_WORD: Final = re.compile(r"\w[\w'’.,-]*")


class Reading(NamedTuple):
    """How much there is to read, and how hard it is.

    Attributes:
        words: of the whole page.
        per_sentence: words of its prose in a sentence.
        grade: Flesch-Kincaid's, of its prose.
    """

    words: int
    per_sentence: float
    grade: float


def reading(page: str) -> Reading:
    """Measure a page in Markdown."""
    prose = _CODE.sub("code", _LINK.sub(r"\1", _NO_PROSE.sub("\n\n", page)))
    sentences = [found for part in _END.split(prose) if (found := _WORD.findall(part))]
    words = [word for sentence in sentences for word in sentence]
    if not words:
        return Reading(len(page.split()), 0.0, 0.0)
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", word.lower().removesuffix("e")))) for word in words)
    per_sentence = len(words) / len(sentences)
    return Reading(
        len(page.split()), per_sentence, 0.39 * per_sentence + 11.8 * syllables / len(words) - 15.59
    )


def _text(page: str, commit: str | None) -> str:
    if commit is None:
        return (ROOT / page).read_text(encoding="utf-8")
    command = ["git", "show", f"{commit}:{page}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print a row of a table for each page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", metavar="PAGE")
    parser.add_argument("--at", metavar="COMMIT")
    given = parser.parse_args()
    print("| page | words | words a sentence | grade |\n| --- | --- | --- | --- |")
    for page in given.pages:
        found = reading(_text(page, given.at))
        print(f"| {page} | {found.words:,} | {found.per_sentence:.1f} | {found.grade:.1f} |")


if __name__ == "__main__":
    main()
