# SPDX-License-Identifier: Apache-2.0
"""Parts of all pictures: titles that fit, axes of whole steps, labels that keep clear of each other."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_SIDES: Final = ((6, 5, "left"), (6, -12, "left"), (-6, 5, "right"), (-6, -12, "right"))
_FURTHER: Final = (0, 11, -11, 22, -22, 33, -33, 44, -44, 55, -55)  # points, up and down


def set_title(figure: Any, text: str, size: float = 13) -> None:
    """Give a figure a title, broken into lines as wide as the figure; to be called once its size is known."""
    figure.suptitle(text, fontsize=size, fontweight="bold", wrap=True)


def set_source(figure: Any, command: str) -> None:
    """Write below a figure the command that made it."""
    figure.supxlabel(command, fontsize=8, color="#666666", wrap=True)


def count_steps(axis: Any) -> None:
    """Make an x axis of steps show whole ones alone."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plain_log(scale: Any) -> None:
    """Label a logarithmic x or y axis 0.1, 0.2, 0.5, 1 ...; less than a decade, as a linear one is.

    To be called when everything is drawn: the labels depend on how far the axis reaches.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = scale.get_view_interval()
    if low > 0 and high / low < 5:
        scale.set_major_locator(MaxNLocator(nbins=6))
        scale.set_minor_locator(NullLocator())
    else:
        scale.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    scale.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Label:
    """A text beside the point that it names."""

    x: float
    y: float
    text: str
    colour: str


def place_labels(figure: Any, axis: Any, labels: Sequence[Label], size: float = 8) -> None:
    """Write labels beside their points where they cover neither each other nor a point.

    To be called when everything else is drawn. One that must go further away gets a line to its point.
    """
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in _pixels(axis, labels)]
    inside = axis.get_window_extent(renderer)
    for label in labels:
        for further, (right, up, side) in itertools.product(_FURTHER, _SIDES):
            line = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.5} if further else None
            note = axis.annotate(
                label.text, (label.x, label.y), xytext=(right, up + further), textcoords="offset points",
                ha=side, fontsize=size, color=label.colour, arrowprops=line,
            )  # fmt: skip
            note.set_in_layout(False)
            box = _text_box(note, renderer)
            if inside.x0 <= box.x0 and box.x1 <= inside.x1 and not box.count_overlaps(taken):
                taken.append(box)
                break
            note.remove()


def _pixels(axis: Any, labels: Sequence[Label]) -> Any:
    return axis.transData.transform([(label.x, label.y) for label in labels]) if labels else []


def _text_box(note: Any, renderer: Any) -> Any:
    """Return where a label's text is, without its line."""
    from matplotlib.text import Text

    note.update_positions(renderer)
    return Text.get_window_extent(note, renderer)
