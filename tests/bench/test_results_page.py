# SPDX-License-Identifier: Apache-2.0
"""Pages quote records, and nothing else: a figure that no run produced is found."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from weir.bench import records, report
from weir.bench.again import Moved, make_again
from weir.bench.case import Run
from weir.bench.claims import Claim, Figure, Published
from weir.bench.headlines import CLAIMS, PUBLISHED
from weir.bench.records import Record
from weir.bench.results import MOST, Column, Row, Table
from weir.bench.results_page import MARK, PAGE, ROOT, pages, quoted, render
from weir.bench.suites import find, problems

RECORDS = records.read_all()


@pytest.mark.parametrize("path", [path for path, _ in pages(RECORDS)], ids=lambda path: path.name)
def test_pages_say_what_the_records_do(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == dict(pages(RECORDS))[path], "run: weir bench results"


def test_every_bold_figure_of_the_readme_is_a_claim() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    bare = MARK.sub("", text)
    assert not [bold for bold in re.findall(r"\*\*(.+?)\*\*", bare) if re.search(r"\d", bold)]
    assert MARK.search(text)


def unknown(text: str) -> list[str]:
    """Return the ratios and shares outside of claims that no page of results has."""
    results = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/results").glob("*.md"))
    known = set(re.findall(r"\d[\d.,]*\d|\d", results))
    return [
        each for each in re.findall(r"(\d[\d.,]*\d|\d) (?:times|%)", MARK.sub("", text)) if each not in known
    ]


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/start/faq.md", "docs/start/install.md"])
def test_figures_without_a_command_stand_in_the_results(name: str) -> None:
    assert not unknown((ROOT / name).read_text(encoding="utf-8"))
    assert unknown("Weir is 1234.5 times as fast, and <!-- claim bmv2 -->9.87 times<!-- end -->") == [
        "1234.5"
    ]


def test_a_figure_that_no_run_produced_differs_from_its_page() -> None:
    page = "so **<!-- claim spraying -->sprayed flows have 3 % of it<!-- end -->**"
    assert quoted(page, RECORDS) != page
    assert "sprayed ones have 37 % (random)" in quoted(page, RECORDS)
    with pytest.raises(LookupError, match="no claim 'speed'"):
        quoted("<!-- claim speed -->a million<!-- end -->", RECORDS)


def test_another_record_is_another_page() -> None:
    record = RECORDS["spraying"]
    (table,) = record.tables
    rows = tuple(
        replace(row, values={**row.values, "p99, ms": 0.03}) if row.contender.startswith("c ") else row
        for row in table.rows
    )
    other = {**RECORDS, "spraying": replace(record, tables=[replace(table, rows=rows)])}
    assert "84 % (random)" in render(other)
    assert render(other) != (ROOT / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_has_commands_and_runs_for_all_its_records(claim: Claim) -> None:
    assert claim.commands.keys() == set(claim.records)
    for name, command in claim.commands.items():
        words = command.split()
        (case,) = find(words[words.index("run") + 1])
        assert RECORDS[name].case == case.path


def test_a_missing_record_is_named_with_the_command_that_makes_it() -> None:
    others = {name: record for name, record in RECORDS.items() if name != "spraying"}
    with pytest.raises(LookupError, match=r"'spraying': weir bench run simulated/spraying --record spraying"):
        render(others)


def test_published_figures_are_those_from_h1_to_h20() -> None:
    numbers = [number for each in PUBLISHED for number in each.number.split(", ")]
    assert numbers == [f"H{number}" for number in range(1, 21)]
    for each in PUBLISHED:
        measured = bool(each.claims or each.command)
        assert measured == bool(each.twin) == bool(each.counter), each.number
        assert each.words
        if not measured:
            assert each.words.startswith(("Not measured: ", "Not built: "))


@pytest.mark.parametrize("each", [each for each in PUBLISHED if each.command], ids=lambda each: each.number)
def test_commands_of_published_figures_are_commands(each: Published) -> None:
    words = each.command.removeprefix("sudo ").split()
    assert words[0] == "weir"
    if words[1:3] == ["bench", "run"]:
        (case,) = find(words[3])
        case.parameters(dict(word.split("=", 1) for word in words if "=" in word))


def test_a_record_reads_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    (case,) = find("simulated/spraying")
    rows = (
        Row("a", {"p99": [1.0, 2.0, 3.0]}, {"depth": 16}),
        Row("b", {"p99": [2.0, 4.0, 9.0]}, {"depth": 16}),
    )
    table = Table("times", (Column("p99"),), rows)
    records.write("mine", case, {"hosts": "2"}, Run(0, range(3, 5)), [table], 0.5)
    read = records.read_all(tmp_path)["mine"]
    assert read.command == "weir bench run simulated/spraying --seeds 2 --seed 3 --set hosts=2"
    assert case.parameters(read.parameters) == case.parameters({"hosts": "2"})
    assert list(read.tables[0].rows) == list(rows)
    assert read.texts == [tuple(report.cells(table))]
    figure = Figure(("mine",), "p99", "a", "b")
    assert figure.words({"mine": read}) == "2.0"
    assert replace(figure, kind="share").words({"mine": read}) == "50 %"
    with pytest.raises(LookupError, match="mine"):
        replace(figure, contender="c").words({"mine": read})


def test_several_settings_are_a_range() -> None:
    def row(contender: str, time: float, rate: str) -> Row:
        return Row(contender, {"ms": time}, {"links": rate})

    rows = (row("Weir", 1, "slow"), row("Gloo", 1.5, "slow"), row("Gloo, fp16 hook", 9, "slow"))
    rows += (row("Weir", 1, "fast"), row("Gloo", 1.2, "fast"))
    record = replace(RECORDS["spraying"], tables=[Table("", (Column("ms"),), rows)])
    figure = Figure(("one",), "ms", "Weir", "Gloo")
    assert figure.words({"one": record}) == "1.2 to 1.5"
    assert replace(figure, where={"links": ("slow",)}).words({"one": record}) == "1.5"


def made_again(record: Record) -> list[Moved]:
    """Make a small spraying again, and compare it with what ``record`` says."""
    (claim,) = (each for each in CLAIMS if each.name == "spraying")
    return list(make_again([claim], {"spraying": record}, Run(0, (), processes=1)))


def test_spraying_that_is_off_moves_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.bench.simulated import spraying

    small = {"racks": "2", "hosts": "2", "spines": "2", "kilobytes": "64", "rounds": "1"}
    (case,) = find("simulated/spraying")
    parameters = case.parameters(small)
    tables = [one for one in case.run(parameters, Run(0, [1], processes=1)) if isinstance(one, Table)]
    texts = {**RECORDS["spraying"].parameters, **small}
    record = replace(RECORDS["spraying"], tables=tables, parameters=texts, seeds=[1])
    assert all(moved.same for moved in made_again(record))
    hashed = tuple(replace(one, spray="hash") for one in spraying.CONTENDERS)
    monkeypatch.setattr(spraying, "CONTENDERS", hashed)
    assert not all(moved.same for moved in made_again(record))


def test_an_encoder_of_twice_the_cost_falls_below_its_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.bench.gradients import cost

    (case,) = find("gradients/cost")
    once = cost._bytes

    def twice(traffic: object) -> object:
        one = once(traffic)  # type: ignore[arg-type]
        return one + one

    monkeypatch.setattr(cost, "_bytes", twice)
    values = case.floors[0].values
    tables = [one for one in case.run(case.parameters(values), Run(0, ())) if isinstance(one, Table)]
    below = [floor for floor in case.floors if (floor.reached(tables) or 0) < floor.least]
    assert {floor.contender for floor in below} == {"DFS", "planner"}


def test_more_than_the_line_allows_is_no_result() -> None:
    (case,) = find("simulated/step")
    rows = (Row("fair", {"time": 1.0}, floor=1.0), Row("unfair", {"time": 0.9}, floor=0.9 * MOST * 1.01))
    table = Table("times", (Column("time"),), rows, floor="line")
    assert list(problems(case, [table])) == ["simulated/step: more than is possible: unfair: 103.0% of line"]
