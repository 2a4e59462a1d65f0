# SPDX-License-Identifier: Apache-2.0
"""Draw the README's picture: ``python docs/picture.py`` writes docs/picture.svg."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

INK, PALE, GREY = "#24292f", "#f6f8fa", "#8c959f"
WORKERS = ("#0969da", "#1a7f37", "#bf8700", "#cf222e")
BLOCKS = ((0, 3), (3, 5), (0, 6), (5, 6))  # which of eight blocks of its gradient each worker sends
CELL = 0.24


def box(axes: Any, x: float, y: float, width: float, height: float, colour: str) -> None:
    """Draw a rounded box with its lower left corner at (x, y)."""
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=PALE, ec=colour, lw=1.4))


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    """Draw an arrow."""
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=colour, lw=1.4, shrinkA=0)
    )


def blocks(axes: Any, x: float, y: float, senders: dict[int, list[str]]) -> None:
    """Draw a gradient of eight blocks; a block is striped in the colours of those whose values it holds."""
    for block in range(8):
        left = x + block * CELL
        for stripe, colour in enumerate(colours := senders.get(block, [])):
            height = CELL / len(colours)
            axes.add_patch(Rectangle((left, y + stripe * height), CELL, height, fc=colour, ec="none"))
        axes.add_patch(Rectangle((left, y), CELL, CELL, fc="none", ec=GREY, lw=0.7))


def draw() -> Figure:
    """Return the picture: workers, switch, workers again, and the controller above."""
    figure = Figure(figsize=(9, 3.7), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 9)
    axes.set_ylim(0, 3.7)
    axes.axis("off")
    sums: dict[int, list[str]] = {}
    for colour, chosen in zip(WORKERS, BLOCKS, strict=True):
        for block in chosen:
            sums.setdefault(block, []).append(colour)
    box(axes, 3.3, 0.35, 2.4, 1.85, INK)
    axes.text(4.5, 1.93, "P4 switch", ha="center", va="center", size=13, weight="bold", color=INK)
    blocks(axes, 4.5 - 4 * CELL, 1.18, sums)
    for y, line in ((0.86, "adds up blocks, skips zero ones,"), (0.62, "sheds the least important first")):
        axes.text(4.5, y, line, ha="center", va="center", size=9, color=INK)
    box(axes, 3.3, 2.85, 2.4, 0.6, GREY)
    axes.text(4.5, 3.15, "controller (P4Runtime)", ha="center", va="center", size=10, color=INK)
    arrow(axes, (4.5, 2.85), (4.5, 2.22), GREY)
    for rank, (colour, chosen) in enumerate(zip(WORKERS, BLOCKS, strict=True)):
        y = 2.05 - rank * 0.55
        box(axes, 0.15, y - 0.12, 2.2, 0.42, colour)
        blocks(axes, 0.29, y - 0.03, {block: [colour] for block in chosen})
        box(axes, 6.65, y - 0.12, 2.2, 0.42, colour)
        blocks(axes, 6.79, y - 0.03, sums)
        middle = 1.3 + (y + 0.09 - 1.3) * 0.45
        arrow(axes, (2.35, y + 0.09), (3.28, middle), colour)
        arrow(axes, (5.7, middle), (6.63, y + 0.09), INK)
    axes.text(1.25, 2.85, "workers send their\nnon-zero blocks", ha="center", va="center", size=10, color=INK)
    axes.text(7.75, 2.85, "all of them receive\nthe same sum", ha="center", va="center", size=10, color=INK)
    return figure


if __name__ == "__main__":
    mpl.rcParams.update({"svg.hashsalt": "weir", "svg.fonttype": "path"})
    draw().savefig(Path(__file__).with_name("picture.svg"), metadata={"Date": None})
