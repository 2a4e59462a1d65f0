# SPDX-License-Identifier: Apache-2.0
"""The check of wording finds the phrases of its tables, and nothing else."""

import pytest

from tests.harness.wording import ROOT, faults, pattern, phrases

PAGES = ("docs/internals/conventions.md", "docs/start/glossary.md")
EVERYTHING = [phrase for page in PAGES for phrase in phrases(page)]


def found(text: str, *, page: bool = False) -> list[tuple[int, str]]:
    """Return the faults of a text."""
    return list(faults(text, pattern(EVERYTHING), page))


@pytest.mark.parametrize("phrase", EVERYTHING)
def test_each_phrase_is_found_across_lines_too(phrase: str) -> None:
    assert found(f"one\n{phrase} two") == [(2, phrase)]
    first, _, rest = phrase.partition(" ")
    if rest:
        assert [line for line, _ in found(f"# {first}\n#   {rest}\n")] == [1]
        assert [line for line, _ in found(f"/* {first}\n * {rest} */")] == [1]


@pytest.mark.parametrize(
    "text",
    ["# Else it waits.", '"""Else it waits."""', "It comes. Else it waits.", "It comes; Else it waits."],
)
def test_a_sentence_does_not_begin_with_else(text: str) -> None:
    assert len(found(text)) == 1


@pytest.mark.parametrize(
    "text", ["it comes, or else", "class ElseBranch:", "not_anew", "a news anchor", "Seattle"]
)
def test_other_words_pass(text: str) -> None:
    assert not found(text)


def test_code_and_targets_of_links_do_not_count_in_pages() -> None:
    text = "Run `start anew` and\n\n```\nanew\n```\n\n[this](page.md#anew).\n"
    assert not found(text, page=True)
    assert found(text + "anew", page=True) == [(8, "anew")]


def test_the_tables_have_the_words_that_pages_lost() -> None:
    assert {"anew", "so many"} <= set(phrases(PAGES[0]))
    assert {"rider", "seat"} <= set(phrases(PAGES[1]))
    assert all((ROOT / page).exists() for page in PAGES)
