# SPDX-License-Identifier: Apache-2.0
"""What is written in a picture can be read: nothing is cut, nothing covers anything else."""

from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from weir.report.pictures import Label, count_steps, place_labels, plain_log, set_title
from weir.train.config import make_config
from weir.train.messages import BackendName, Evaluated, Step, WireCounters
from weir.train.messages import Sent as Part
from weir.train.record import RunRecord
from weir.train.report import draw


def picture(width: float = 6, height: float = 4) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@pytest.mark.parametrize("width", [3, 6, 12])
def test_a_long_title_is_broken_not_cut(width: float) -> None:
    figure = picture(width)
    axis: Any = figure.subplots()
    set_title(figure, "Communication cost saved, % (both directions, headers included)")
    figure.draw_without_rendering()
    (title,) = [text for text in figure.texts if "saved" in text.get_text()]
    box, whole = title.get_window_extent(), figure.bbox
    assert box.x0 >= 0 and box.x1 <= whole.x1
    assert axis.get_window_extent().y1 <= box.y0


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 1000])
def test_there_are_no_half_steps(steps: int) -> None:
    figure = picture()
    axis: Any = figure.subplots()
    axis.plot(range(1, steps + 1), range(steps))
    count_steps(axis)
    assert all(float(tick).is_integer() for tick in axis.get_xticks())


@pytest.mark.parametrize("span", [(12.1, 40.0), (0.3, 90.0), (3.0, 4.0), (0.001, 100.0)])
def test_numbers_of_a_logarithmic_axis_keep_clear_of_each_other(span: tuple[float, float]) -> None:
    figure = picture()
    axis: Any = figure.subplots()
    axis.plot(span, (0, 1))
    axis.set_xscale("log")
    plain_log(axis.xaxis)
    figure.draw_without_rendering()
    texts = [*axis.xaxis.get_ticklabels(), *axis.xaxis.get_ticklabels(minor=True)]
    left, right = axis.get_xlim()
    shown = [
        text.get_window_extent()
        for text in texts
        if text.get_text() and left <= text.get_position()[0] <= right
    ]
    assert len(shown) >= 2
    assert not any(one.overlaps(other) for one, other in combinations(shown, 2))


def test_names_of_points_that_lie_together_do_not_cover_each_other() -> None:
    figure = picture()
    axis: Any = figure.subplots()
    names = ["exdyna", "micro", "micro-published", "random-k", "dfs", "deft", "topk", "topk-block"]
    labels = [Label(1 + index / 50, 11.4, name, "black") for index, name in enumerate(names)]
    labels += [Label(9, 12, "at the edge of it", "black")]
    axis.plot([label.x for label in labels], [label.y for label in labels], "o")
    place_labels(figure, axis, labels)
    figure.draw_without_rendering()
    boxes = [super(type(note), note).get_window_extent() for note in axis.texts]
    assert sorted(note.get_text() for note in axis.texts) == sorted(label.text for label in labels)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x1 <= axis.get_window_extent().x1 for box in boxes)


@pytest.mark.parametrize(("ours", "gloos"), [(0.975, 0.981), (0.981, 0.975), (0.98, 0.98)])
def test_the_higher_accuracy_is_written_above_the_lower(ours: float, gloos: float) -> None:
    records = [trained("weir", ours), trained("gloo", gloos)]
    axis = draw(make_config(model="mlp", workers=1), records).axes[1]
    heights = {f"{100 * ours:.1f}": 0.0, f"{100 * gloos:.1f}": 0.0}
    notes = [(note.get_text(), note.xyann[1]) for note in axis.texts]
    assert {text for text, _ in notes} == heights.keys()
    by_height = [text for text, _ in sorted(notes, key=lambda note: note[1])]
    assert by_height == sorted(by_height) and len({height for _, height in notes}) == 2


def test_times_over_the_same_links_have_what_they_cost_below_them() -> None:
    config = make_config(model="mlp", method="dense", workers=1, links="1mbit", hosts="namespaces")
    runs: list[BackendName] = ["weir", "gloo"]
    said = draw(config, [trained(run, 0.9) for run in runs]).get_supxlabel()
    share = "line in use, up 0.80 %; line in use, down 0.80 %"  # 100 bytes in 0.1 s
    assert said == f"Weir: {share}\nGloo, dense: {share}"


def trained(run: BackendName, accuracy: float) -> RunRecord:
    record = RunRecord(run, [0], 1)
    record.add(
        Step(
            rank=0,
            epoch=1,
            step=1,
            loss=1.0,
            samples=8,
            seconds=0.1,
            communication_s=0.01,
            traffic=WireCounters(bytes_up=100, bytes_down=100),
            sent=Part(),
            checksum=1,
        )
    )
    record.add(Evaluated(0, 1, 0.5, accuracy, 1))
    return record
