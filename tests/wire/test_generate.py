# SPDX-License-Identifier: Apache-2.0
from weir.wire import definition as d
from weir.wire import generate


def test_generated_files_are_what_the_definition_says() -> None:
    assert generate.stale() == []


def test_headers_are_whole_words() -> None:
    assert [header.size for header in (*d.HEADERS, d.WEIGHTS)] == [28, 8, 24, 28]


def test_the_job_is_at_one_place() -> None:
    """The driver of a shared port gives a frame to the job in it, whatever its kind."""
    places = [
        sum(field.bits for field in header.fields[: [f.name for f in header.fields].index("job")])
        for header in (d.WEIR, d.WEIGHTS)
    ]
    assert places == [32, 32]


def test_every_event_is_explained() -> None:
    assert set(d.EVENT_HELP) == set(d.Event)
