# SPDX-License-Identifier: Apache-2.0
from weir.wire import definition as d
from weir.wire import generate


def test_generated_files_are_what_the_definition_says() -> None:
    assert generate.stale() == []


def test_headers_are_whole_words() -> None:
    assert [header.size for header in d.HEADERS] == [28, 8, 24]


def test_every_event_is_explained() -> None:
    assert set(d.EVENT_HELP) == set(d.Event)
